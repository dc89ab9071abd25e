"""`python -m opforge`: the command, where no script was installed."""

from .cli import main

main(prog_name="opforge")
