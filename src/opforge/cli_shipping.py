"""Commands for what was built and goes elsewhere."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import click

from .errors import BadOption


@click.command()
@click.argument("path", metavar="PATH")
@click.option(
    "--source",
    "sources",
    multiple=True,
    metavar="TARGET",
    help="What to build it from again, as `opforge build` takes it: is imported; repeatable.",
)
@click.option("--manifest-only", is_flag=True, help="Compare the files alone; do not rebuild.")
@click.option(
    "--trusted-key",
    "trusted_keys",
    multiple=True,
    metavar="KEY",
    help="Require a signature by this public key (or key file); repeatable, any one will do.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
@click.pass_context
def verify(ctx: click.Context, /, path: str, *, as_json: bool, **given: Any) -> None:
    """Rebuild a library or recorded kernels and compare every file.

    \b
    opforge verify dist --source ops.py
    opforge verify mylib-1.2.0-py3-none-manylinux_2_34_x86_64.whl --manifest-only

    PATH is a folder that `opforge build` wrote, or a library in it. Its files are compared with
    the hashes in share/NAME/SHA256SUMS first, then with what the recorded options give now, with
    every kernel compiled anew: this imports the sources, as the build did. Nothing is imported
    that the folder names. With --manifest-only, PATH may also be a wheel, or its installed
    package. The exit status is 1 if any file differs.
    """  # noqa: D301  # click reads the backspace: lines below it are not wrapped
    from .native.commands.verify import package_at, to_json, verify
    from .serving.command import rebuild

    if path.endswith(".whl"):
        from .shipping.wheel_check import verify_wheel as verify
    elif given["manifest_only"] and package_at(path):
        from .shipping.wheel_check import verify_package as verify
    found = verify(path, rebuild_served=rebuild, **given)
    click.echo(to_json(found) if as_json else "\n".join(map(str, found)))
    ctx.exit(0 if all(one.ok for one in found) else 1)


@click.command()
@click.argument("folder", metavar="FOLDER")
@click.option("--key", required=True, metavar="FILE", help="A secret key of minisign.")
def sign(folder: str, key: str) -> None:
    """Sign a library or recorded kernels with a key of minisign.

    \b
    opforge sign dist --key minisign.key
    opforge verify dist --manifest-only --trusted-key minisign.pub

    Writes share/NAME/SHA256SUMS.minisig; SHA256SUMS, which it signs, has the hash of every file.
    Asks for the password of a key that has one, or reads it from a pipe.
    """  # noqa: D301  # click reads the backspace: lines below it are not wrapped
    from .native.commands.verify import signed

    click.echo(signed(folder, key, _password))


def _password() -> str:
    if sys.stdin.isatty():
        asked: str = click.prompt("password of the key", hide_input=True)
        return asked
    piped = sys.stdin.readline().rstrip("\n")
    if not piped:
        raise BadOption(
            "the key has a password, and standard input has none",
            fix="run the command in a terminal, or pipe the password to it",
        )
    return piped


@click.command()
@click.argument("folder", metavar="FOLDER")
@click.option(
    "-o", "--output", default="wheelhouse", show_default=True, metavar="DIR", help="Output folder."
)
@click.option("--version", default="0.0.0", show_default=True, help="Version of the package.")
@click.option("--name", help="Package of served kernels; default: the folder's name.")
@click.option(
    "--layout",
    type=click.Choice(["wheel", "kernels"]),
    default="wheel",
    show_default=True,
    help="Write a wheel, or a folder for HuggingFace's kernels.",
)
def wheel(folder: str, output: str, **given: Any) -> None:
    """Pack a built library, or served kernels, as a Python wheel.

    \b
    opforge build ops.py --arch sm_90 --torch -o dist
    opforge wheel dist --version 1.2.0 -o wheelhouse

    FOLDER comes from `opforge build --torch`. Where the wheel is installed, neither opforge nor
    Triton nor a compiler is needed. A folder of `opforge build launches.json` works too; its wheel
    needs opforge and Triton.
    """  # noqa: D301  # click reads the backspace: lines below it are not wrapped
    click.echo(pack(folder, output, **given))


@click.command()
@click.argument("sources", nargs=-1, required=True)
@click.option(
    "-o", "--output", metavar="FILE", help="Write a page (.html) or JSON (.json) to this file."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
@click.option(
    "--fail-on", metavar="LIMITS", help='Exit with 1 if one holds: "spills>0,bytes>20MB".'
)
@click.pass_context
def report(
    ctx: click.Context,
    /,
    sources: tuple[str, ...],
    output: str | None,
    fail_on: str | None,
    *,
    as_json: bool,
) -> None:
    """Show what a build has: registers, spills, coverage, times.

    \b
    opforge report dist -o report.html
    opforge report kernels counts.json tuning.json check.json -o report.html
    opforge report old new --fail-on "new_spills>0,grown_bytes>1MB"

    Each of SOURCES is a folder of `opforge build` or its library, an earlier report as JSON, or a
    file with what belongs to it: launches of `opforge serve --counts` or
    `opforge.served().to_json()`, a table of `opforge tune`, `opforge check --json`, measured times.
    For two builds, the second is shown, and what has changed since the first; a file belongs to the
    build before it. The exit status is 1 if a limit is exceeded.
    """  # noqa: D301  # click reads the backspace: lines below it are not wrapped
    from .report.command import check_output, make, write

    check_output(output)
    made = make(sources, fail_on)
    if output is not None:
        write(made, output)
    click.echo(made.to_json() if as_json else str(made), nl=not as_json)
    if output is not None:
        click.echo(f"wrote {output}", err=as_json)
    ctx.exit(0 if made.ok else 1)


def pack(folder: str, output: str, version: str = "0.0.0", **given: Any) -> str:
    """Write the wheel of a folder, for this command and `opforge build --wheel`."""
    from .shipping.command import run

    return run(folder, output, version, **given)


def wheel_name_check(name: str | None) -> Callable[[str], None]:
    """What refuses a name that a wheel cannot have; the one that is given already is refused."""
    from .shipping.command import check_package_name

    check = functools.partial(check_package_name, fix="choose another one: --name NAME")
    if name is not None:
        check(name)
    return check
