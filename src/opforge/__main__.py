"""`python -m opforge`: the command, where no script was installed."""

from .cli import main

# Guarded, as processes that a command starts may import this module again.
if __name__ == "__main__":
    main(prog_name="opforge")
