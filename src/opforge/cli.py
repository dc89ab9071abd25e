"""The `opforge` command: parses arguments and prints, nothing else."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

import opforge

from .doctor import Finding, examine
from .errors import OpforgeError
from .targets import resolve

STYLES = {"ok": "green", "limited": "yellow", "missing": "red"}


class Commands(click.Group):
    """Prints opforge's own errors as a message; they already say where and why."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except OpforgeError as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=Commands)
@click.version_option(opforge.__version__)
def main() -> None:
    """Turn Python functions into PyTorch operators."""


@main.command()
@click.argument("target")
def explain(target: str) -> None:
    """Say how an operator was registered, and why.

    TARGET is module:op or path/to/file.py:op; without :op, every operator found there.
    """
    click.echo("\n\n".join(opforge.explain(op) for op in resolve(target)))


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def doctor(*, as_json: bool) -> None:
    """Say what works on this machine, and how to fix what does not."""
    findings = examine()
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(f) for f in findings], indent=2))
    else:
        Console().print(_table(findings))
        # Below the table, because a command that is wrapped in a cell cannot be copied.
        for finding in findings:
            if finding.fix:
                click.echo(f"{finding.name}: {finding.fix}")


def _table(findings: list[Finding]) -> Table:
    table = Table("", "status", "detail", box=SIMPLE_HEAD)
    for finding in findings:
        status = Text(finding.status, style=STYLES[finding.status])
        # Text, not str: brackets in a compiler's version are no markup.
        table.add_row(finding.name, status, Text(finding.detail, overflow="fold"))
    return table
