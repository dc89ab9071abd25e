"""The progress bar of commands that take minutes."""

from __future__ import annotations

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)


class ProgressBar:
    """A bar that stays when the work is done, with lines above it; `start` may come again."""

    def __init__(self, title: str, console: Console) -> None:
        self._console = console
        self._bar = Progress(
            TextColumn(title),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False),
            console=console,
        )
        self._task: TaskID | None = None

    def start(self, total: int) -> None:
        """Show an empty bar; nothing at all if there is nothing to do."""
        if self._task is not None:
            self._bar.remove_task(self._task)
            self._task = None
        if total:
            self._task = self._bar.add_task("", total=total)
            self._bar.start()

    def advance(self, text: str) -> None:
        """One more is done or begun; `text` says which."""
        if self._task is not None:
            self._bar.update(self._task, advance=1, description=text)

    def detail(self, text: str) -> None:
        """A line that only a log needs."""

    def say(self, text: str) -> None:
        """A line above the bar."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def stop(self, text: str | None = None) -> None:
        if self._task is not None:
            self._bar.update(self._task, description=text)
            self._bar.stop()


class Log(ProgressBar):
    """In place of a bar, for logs: lines on stderr, or nothing at all."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet

    def start(self, total: int) -> None: ...

    def advance(self, text: str) -> None: ...

    def detail(self, text: str) -> None:
        self.say(text)

    def say(self, text: str) -> None:
        if not self._quiet:
            click.echo(text, err=True)

    def stop(self, text: str | None = None) -> None: ...


def watching(title: str, *, quiet: bool = False) -> ProgressBar:
    """A bar on stderr where a person watches, else a log."""
    console = Console(stderr=True)
    if console.is_terminal and console.is_interactive and not quiet:
        return ProgressBar(title, console)
    return Log(quiet=quiet)
