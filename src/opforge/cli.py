"""The `opforge` command: parses arguments and prints, nothing else.

Each command imports what it needs when it runs: torch takes seconds to import, and neither help
nor a build that finds nothing to do needs it.
"""

from __future__ import annotations

import dataclasses
import errno
import functools
import json
import re
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

import opforge

from .errors import BadOption, OpforgeError

if TYPE_CHECKING:
    from .doctor import Finding

STYLES = {"ok": "green", "limited": "yellow", "missing": "red", "optional": "dim"}


class Commands(click.Group):
    """Prints opforge's own errors without a traceback; they already say where and why."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except OpforgeError as error:
            raise click.ClickException(str(error)) from error
        except SystemExit as error:
            if isinstance(error.code, str):
                # A command's own, with what it has to say.
                raise
            from .native.targets import exited_in_body

            raise click.ClickException(str(exited_in_body(error))) from error
        except (OSError, ImportError) as error:
            said = _of_the_disk(error) if isinstance(error, OSError) else None
            said = said or _of_a_package(error)
            if said is None:
                raise
            raise click.ClickException(str(said)) from error


def _of_a_package(error: OSError | ImportError) -> OpforgeError | None:
    """For torch or Triton that is missing, or that is there and does not import."""
    from .versions import INSTALL_TORCH, INSTALL_TRITON

    needed = {"torch": INSTALL_TORCH, "triton": INSTALL_TRITON}
    if isinstance(error, ModuleNotFoundError) and error.name in needed:
        return OpforgeError(f"{error.name} is not installed", fix=needed[error.name])
    running = [f.f_globals.get("__name__") for f, _ in traceback.walk_tb(error.__traceback__)]
    for name, install in needed.items():
        # Python takes a package that failed to import back out.
        if name in running and name not in sys.modules:
            return OpforgeError(
                f"{name} is installed, but does not import: {error}",
                fix=install.replace("install", "install --force-reinstall", 1),
            )
    return None


def _of_the_disk(error: OSError) -> OpforgeError | None:
    if error.errno in _FORBIDDEN and error.filename is not None:
        return OpforgeError(
            f"{error.filename} cannot be opened: {error.strerror}",
            fix="give yourself the permission (chmod), or name another file or folder",
        )
    if error.errno not in _OF_THE_DISK:
        return None
    room = f"make room in the output folder and in {tempfile.gettempdir()}, or set TMPDIR"
    return OpforgeError(
        f"a file cannot be written: {error.strerror}",
        found=None if error.filename is None else str(error.filename),
        fix="choose a shorter name" if error.errno == errno.ENAMETOOLONG else room,
    )


_FORBIDDEN = {errno.EACCES, errno.EPERM}
_OF_THE_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENAMETOOLONG}


@click.group(cls=Commands)
@click.version_option(opforge.__version__)
def main() -> None:
    """Turn Python functions into PyTorch operators and C libraries."""


@main.command()
@click.argument("targets", nargs=-1, required=True)
@click.option("--tuning", metavar="FILE", help="Say what a build with this table would take.")
@click.pass_context
def explain(ctx: click.Context, /, targets: tuple[str, ...], tuning: str | None) -> None:
    """Show how an operator was registered, and why.

    Each of TARGETS is module:op or path/to/file.py:op. Without :op, every operator in the module
    or file is explained; for a folder, those of every Python file in it. For a function that is
    not an operator, it shows what @opforge.op would do. If a file of a folder cannot be loaded, the
    error goes to stderr, and the exit status is 1.
    """
    from .native.targets import load

    loaded = [load(target, functions=True) for target in targets]
    ops = {id(op): op for each in loaded for op in each.operators}.values()
    click.echo("\n\n".join(opforge.explain(op, tuning=tuning) for op in ops))
    problems = [problem for each in loaded for problem in each.problems]
    for problem in problems:
        click.echo(f"Error: {problem}", err=True)
    ctx.exit(1 if problems else 0)


@main.command()
@click.argument("targets", nargs=-1, required=True)
@click.option(
    "--input", "texts", multiple=True, metavar="NAME=VALUE", help="An argument; repeatable."
)
@click.option(
    "--inputs", "function", metavar="FILE.PY:FN", help="A function that returns (args, kwargs)."
)
@click.option(
    "--reference", metavar="FILE.PY:FN", help="A function to compare with; default: none."
)
@click.option("--tolerance", type=float, help="Relative tolerance; default: by dtype.")
@click.option(
    "--only", multiple=True, metavar="ROW,...", help="Run these rows; repeatable; default: all."
)
@click.option("--skip", multiple=True, metavar="ROW,...", help="Skip these rows; repeatable.")
@click.option(
    "--require", multiple=True, metavar="ROW,...", help="Fail if these rows do not run; repeatable."
)
@click.option(
    "--arch", help="GPU to trace and to build for: sm_90, gfx942; default: this one, or sm_90."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option("--junit", metavar="FILE", help="Also write JUnit's XML, for CI.")
@click.option("--html", metavar="FILE", help="Also write a page with every table.")
@click.pass_context
def check(
    ctx: click.Context, /, *, as_json: bool, junit: str | None, html: str | None, **given: Any
) -> None:
    """Check operators in every runtime and report what fails.

    \b
    opforge check norms.py:rms_norm \\
      --input "x=randn(8, 128, bf16)" --input "cfg.weight=ones(128)"
    opforge check ops/ --require eager --junit report.xml

    Each of TARGETS is a module or file, module:op, or a folder of Python files. A value is a
    Python expression with torch's functions, dtypes such as bf16, and the names of the operator's
    file. Without --input, silu takes its inputs from the function silu_inputs in its file, which
    returns (args, kwargs), and its reference from silu_reference. The exit status is 1 if a row
    fails or an operator cannot be checked.
    """  # noqa: D301  # click reads the backspace: lines below it are not wrapped
    from .check.command import CheckArguments, check_targets

    for file in filter(None, (junit, html)):
        if not Path(file).absolute().parent.is_dir():
            raise BadOption(
                f"{file} cannot be written", found="no such folder", fix="make the folder first"
            )
    for option in ("only", "skip", "require"):
        names = (name.strip() for text in given[option] for name in text.split(","))
        given[option] = tuple(filter(None, names))
    summary = check_targets(CheckArguments(**given), quiet=as_json)
    if as_json:
        click.echo(summary.as_json())
    else:
        text = Text(str(summary))
        text.highlight_regex(_STATUS)
        Console().print(text, soft_wrap=True)
        for problem in summary.problems:
            click.echo(f"Error: {problem}", err=True)
    if junit is not None:
        Path(junit).write_text(summary.as_junit(), encoding="utf-8")
    if html is not None:
        Path(html).write_text(summary.as_html(), encoding="utf-8", errors="backslashreplace")
    ctx.exit(0 if summary.ok else 1)


# By the styles that a terminal shows them in.
_STATUS = re.compile(
    r"^  \S.*?  (?:(?P<green>pass(?:ed)?)|(?P<red>fail(?:ed)?)|"
    r"(?P<yellow>skipped|incomplete|not checked))\b",
    re.MULTILINE,
)


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.pass_context
def doctor(ctx: click.Context, *, as_json: bool) -> None:
    """Show what works on this machine, and how to fix what does not.

    The exit status is 1 if something is missing other than a GPU and what is optional.
    """
    from .doctor import examine, works

    findings = examine(thorough=True)
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(f) for f in findings], indent=2))
    else:
        Console().print(_table(findings))
        # Below the table: a command that is wrapped in a cell cannot be copied.
        fixes: dict[str, list[str]] = {}
        for finding in findings:
            if finding.fix:
                fixes.setdefault(finding.fix, []).append(finding.name)
        for fix, names in fixes.items():
            click.echo(f"{', '.join(names)}: {fix}")
    ctx.exit(0 if works(findings) else 1)


@main.command()
@click.argument("target")
@click.option(
    "-o", "--output", required=True, metavar="FILE", help="The package to write, e.g. model.pt2."
)
@click.option("--inputs", metavar="FILE.PY:FN", help="A function that returns (args, kwargs).")
@click.option(
    "--input",
    "texts",
    multiple=True,
    metavar="NAME=VALUE",
    help="An argument of an operator, e.g. x=randn(8,128); repeatable.",
)
@click.option(
    "--dynamic",
    multiple=True,
    metavar="ARG:DIM=NAME",
    help="A dimension that varies, e.g. x:0=batch:1:1024; repeatable.",
)
@click.option(
    "--strict/--no-strict", default=None, help="Export mode; default: non-strict, then strict."
)
@click.option("--profile", metavar="DIR", help="Write Chrome traces to this folder.")
@click.option("--cpp", metavar="DIR", help="Write a C++ program that runs the package.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def package(
    target: str,
    output: str,
    inputs: str | None,
    texts: tuple[str, ...],
    dynamic: tuple[str, ...],
    *,
    strict: bool | None,
    profile: str | None,
    cpp: str | None,
    as_json: bool,
) -> None:
    """Compile a model or operator with AOTInductor and verify it.

    TARGET is module:model or path/to/file.py:model. It may also name an operator, or a class or
    function that makes the model.
    """
    from .aoti_package.build import read_dynamic_texts, read_model
    from .aoti_package.package_record import cpp_needs, write_cpp
    from .check.command import arguments_of
    from .native.targets import load, locate

    sizes = read_dynamic_texts(dynamic)
    model = read_model(locate(target), target)
    if inputs is None and not opforge.is_op(model):
        raise click.UsageError(
            "a model needs --inputs file.py:fn, a function that returns (args, kwargs)"
        )
    places = [place for _, place in load(target).places] if opforge.is_op(model) else []
    args, kwargs = arguments_of(model, texts, inputs, places)
    built = opforge.package(model, args, output, kwargs=kwargs, dynamic=sizes, strict=strict)
    click.echo(built.to_json() if as_json else str(built))
    # With --json nothing but the JSON goes to stdout.
    for file in built.profile(profile) if profile else ():
        click.echo(f"wrote {file}", err=as_json)
    for file in write_cpp(built, cpp) if cpp else ():
        click.echo(f"wrote {file}", err=as_json)
    if cpp:
        click.echo(cpp_needs(built), err=as_json)


@main.command()
@click.argument("targets", nargs=-1, required=True)
@click.option(
    "-o", "--output", default="dist", show_default=True, metavar="DIR", help="Output folder."
)
@click.option(
    "--arch",
    "archs",
    multiple=True,
    help="GPU architecture: sm_90, sm90, 90, sm_90a, gfx942; repeatable; default: sm_90, or those "
    "of a recording.",
)
@click.option("--name", help="Library name; default: the operators' namespace.")
@click.option("--static", is_flag=True, help="Also build libNAME.a.")
@click.option("--ptx", is_flag=True, help="Also embed PTX, for future GPUs.")
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    metavar="N",
    help="Compiler processes; default: one per core.",
)
@click.option("--dask", metavar="ADDRESS", help="Compile on the cluster of this dask scheduler.")
@click.option("--list", "only_list", is_flag=True, help="Show what would be built, and stop.")
@click.option("-v", "--verbose", is_flag=True, help="Show every kernel variant, or path (--list).")
@click.option("--force", is_flag=True, help="Build even if nothing has changed.")
@click.option(
    "--only", multiple=True, metavar="OP", help="Build this operator; repeatable; default: all."
)
@click.option("--sources-only", is_flag=True, help="Write the C sources without compiling them.")
@click.option("--torch", is_flag=True, help="Also build libNAME_torch.so, for PyTorch and wheels.")
@click.option("--tvm-ffi", is_flag=True, help="Also export the operators to tvm-ffi.")
@click.option("--jax", is_flag=True, help="Also write python/NAME/jax.py, a module for JAX.")
@click.option(
    "--wheel", "as_wheel", is_flag=True, help="Also pack the result as a wheel; implies --torch."
)
@click.option("--depfile", metavar="FILE", help="Write a make rule that lists the files read.")
@click.option(
    "--tuning", metavar="FILE", help="Take configurations from this `opforge tune` table."
)
@click.option(
    "--widen",
    multiple=True,
    metavar="KERNEL:NAME=LOW..HIGH",
    help="For a recording: build these values of a constant, too; repeatable.",
)
def build(*, only_list: bool, force: bool, as_wheel: bool, **given: Any) -> None:
    """Build a C library of declared operators, or recorded kernels.

    \b
    opforge build ops.py --arch sm_80 --arch sm_90 -o dist
    opforge build launches.json --arch sm_90 -o kernels

    Each of TARGETS is a module or file (every operator in it that has a native.declare),
    module:op, or a folder with one subfolder per operator, as ops/add/op.py. The library needs
    no Python at run time.
    """  # noqa: D301  # click reads the backspace: lines below it are not wrapped
    from .commands import build
    from .native.targets import are_recordings

    recorded, package, check_name = are_recordings(given["targets"]), None, None
    if as_wheel:
        from .shipping.command import check_extra, package_name

        check_extra()
        if recorded:
            package = package_name(Path(given["output"]), given.pop("name"))
        else:
            given["torch"] = True
            check_name = _wheel_name_check(given["name"])
    if not recorded:
        given["archs"] = given["archs"] or ("sm_90",)
    arguments = build.BuildArguments(**given)
    arguments.refuse_unused()
    for option, is_given in (("--static", arguments.static), ("--wheel", as_wheel)):
        if arguments.sources_only and is_given:
            raise BadOption(f"--sources-only and {option} were both given", fix="use one of them")
    if only_list:
        click.echo(build.listing(arguments))
        return
    done = None if force else build.nothing_to_do(arguments)
    done = build.run(arguments, check_name) if done is None else done
    click.echo(done.said)
    if as_wheel:
        built = arguments.output if recorded else str(done.library)
        click.echo(_pack(built, arguments.output, name=package))


@main.command()
@click.argument("targets", nargs=-1, required=True)
@click.option(
    "-o",
    "--output",
    default="tuning.json",
    show_default=True,
    metavar="FILE",
    help="The table to write or extend.",
)
@click.option("--arch", help="Fail unless the GPU has this architecture, e.g. sm_90.")
@click.option(
    "--sizes", multiple=True, metavar="NAME=N,N,...", help="Sizes to measure; repeatable."
)
@click.option(
    "--only", multiple=True, metavar="OP", help="Tune this operator; repeatable; default: all."
)
@click.option("--again", is_flag=True, help="Also measure rows that the table already has.")
def tune(**given: Any) -> None:
    """Measure the configurations of autotuned kernels on this GPU.

    \b
    opforge tune ops/ --sizes m=1,16,256,4096 --sizes n=4096 -o tuning.json

    Writes a table for `opforge build --tuning` and opforge.use_tuning. Existing rows are kept, so
    an interrupted run continues where it stopped. The tiles of products that ops make with torch
    (`x @ w`) are measured, too, for C libraries.
    """  # noqa: D301  # click reads the backspace: lines below it are not wrapped
    from .measuring.measure import run

    click.echo(run(**given))


@main.command(context_settings={"ignore_unknown_options": True})
@click.option(
    "-o",
    "--output",
    default="launches.json",
    show_default=True,
    metavar="FILE",
    help="The recording to write.",
)
@click.option("--merge", is_flag=True, help="Join recordings instead of running a program.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def record(ctx: click.Context, command: tuple[str, ...], output: str, *, merge: bool) -> None:
    """Record the Triton kernels that a program launches.

    \b
    opforge record -o launches.json -- python serve.py --model m
    opforge record --merge a.json b.json -o launches.json

    Nothing of the program is changed; the processes that it starts are recorded, too. The exit
    status is the program's.
    """  # noqa: D301  # click reads the backspace: lines below it are not wrapped
    from .recording import command as recording

    if merge:
        click.echo(recording.merge(command, output))
        return
    status, said = recording.run(command, output)
    click.echo(said, err=True)
    ctx.exit(status)


@main.command(context_settings={"ignore_unknown_options": True})
@click.option("--strict", is_flag=True, help="Fail where a launch is not covered.")
@click.option(
    "--tune-missing", is_flag=True, help="Let autotuners measure, as Triton does without opforge."
)
@click.option(
    "--counts", metavar="FILE", help="Write what was served, as JSON, for `opforge report`."
)
@click.argument("folder", metavar="FOLDER")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def serve(ctx: click.Context, /, folder: str, command: tuple[str, ...], **given: Any) -> None:
    """Run a program whose Triton kernels come from a folder.

    \b
    opforge serve kernels -- python serve.py --model m

    FOLDER comes from `opforge build launches.json`. Nothing of the program is changed, and the
    processes that it starts are served, too. If opforge is installed with `pip install .` (not
    `-e`), a variable does the same: OPFORGE_SERVE=kernels python serve.py. The exit status is the
    program's.
    """  # noqa: D301  # click reads the backspace: lines below it are not wrapped
    from .serving import command as serving

    ctx.exit(serving.serve(folder, command, **given))


@main.command("list")
@click.argument("targets", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
@click.pass_context
def list_(ctx: click.Context, targets: tuple[str, ...], *, as_json: bool) -> None:
    """List operators with their cases and kernels, or recordings.

    Each of TARGETS is a module or file, module:op, a folder of Python files, or a recording of
    `opforge record`. If some cannot be loaded, the errors go to stderr, the others are listed, and
    the exit status is 1. In a folder with one subfolder per operator (ops/add/op.py), it also
    reports what `opforge build` would refuse.
    """
    from .native.targets import are_recordings

    if are_recordings(targets):
        from .recording import command as recording

        found = recording.joined(targets)
        click.echo(found.to_json() if as_json else recording.listing(found))
        return
    from .commands.list import collect, render

    listed = collect(targets)
    click.echo(listed.to_json() if as_json else render(listed.operators))
    for problem in listed.problems:
        click.echo(f"Error: {problem}", err=True)
    ctx.exit(1 if listed.problems else 0)


@main.command("cmake-dir")
def cmake_dir() -> None:
    """Print the folder that find_package(opforge) needs.

    \b
    cmake -B build -Dopforge_DIR="$(opforge cmake-dir)"
    """  # noqa: D301  # click reads the backspace: lines below it are not wrapped
    click.echo((Path(__file__).parent / "cmake").as_posix())


@main.command()
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
    from .commands.verify import package_at, to_json, verify

    if path.endswith(".whl"):
        from .shipping.command import verify_wheel as verify
    elif given["manifest_only"] and package_at(path):
        from .shipping.command import verify_package as verify
    found = verify(path, **given)
    click.echo(to_json(found) if as_json else "\n".join(map(str, found)))
    ctx.exit(0 if all(one.ok for one in found) else 1)


@main.command()
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
    from .commands.verify import signed

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


@main.command()
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
    click.echo(_pack(folder, output, **given))


@main.command()
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


def _wheel_name_check(name: str | None) -> Callable[[str], None]:
    """What refuses a name that a wheel cannot have, and has refused the one that was asked for."""
    from .shipping.command import check_package_name

    check = functools.partial(check_package_name, fix="choose another one: --name NAME")
    if name is not None:
        check(name)
    return check


def _pack(folder: str, output: str, version: str = "0.0.0", **given: Any) -> str:
    from .shipping.command import run

    return run(folder, output, version, **given)


def _table(findings: list[Finding]) -> Table:
    table = Table("", "status", "detail", box=SIMPLE_HEAD)
    for finding in findings:
        status = Text(finding.status, style=STYLES[finding.status])
        # Text, not str: brackets in a compiler's version are not markup.
        table.add_row(finding.name, status, Text(finding.detail, overflow="fold"))
    return table
