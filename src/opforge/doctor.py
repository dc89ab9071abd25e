"""What works on this machine and what does not, each with the command that fixes it."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import warnings
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from . import environment
from .libstdcxx import CXX_COMPILERS, to_preload
from .versions import (
    INSTALL_TESTED,
    INSTALL_TORCH,
    INSTALL_TRITON,
    OLDEST_TORCH,
    OLDEST_TRITON,
    TESTED,
    release,
)

INTERPRET = "TRITON_INTERPRET=1 python your_script.py"

INSTALL_COMPILER = (
    "xcode-select --install"
    if sys.platform == "darwin"
    else "apt-get install g++  (or your system's equivalent)"
)
OLDEST_CMAKE = "3.25"
INSTALL_HEADERS = (
    f"apt-get install python{sys.version_info.major}.{sys.version_info.minor}-dev"
    "  (or your system's equivalent)"
)


@dataclass(frozen=True)
class Finding:
    """One line of the report; `fix` is empty where nothing needs fixing."""

    name: str
    # "optional" is missing, too, but most do without.
    status: Literal["ok", "missing", "limited", "optional"]
    detail: str
    fix: str = ""


@dataclass(frozen=True)
class Tool:
    """A package, program or device: what was found, or why it is missing."""

    present: bool
    detail: str


@dataclass(frozen=True)
class MachineFacts:
    """The facts, gathered once, so that tests can judge any machine."""

    tools: Mapping[str, Tool]
    gpu_unused: bool = False  # a GPU driver is installed, but this build of torch is CPU-only
    interpret: str | None = None
    libstdcxx: str = ""  # what to preload, where C++ libraries would bring their own
    # (feature, private API of torch or Triton, why it is not what the feature needs)
    gaps: tuple[tuple[str, str, str], ...] = ()


def examine(*, thorough: bool = False) -> list[Finding]:
    """Examine this machine; thoroughly, also the private APIs that features are made of.

    That imports torch's compiler, which takes some seconds.
    """
    return judge(look(thorough=thorough))


def look(*, thorough: bool = False) -> MachineFacts:
    torch, triton = _package("torch"), _package("triton")
    tools = {
        "torch": torch,
        "Triton": triton,
        "NumPy": _package("numpy"),
        "C compiler": _compiler(environment.CC, ("cc", "gcc", "clang")),
        "C++ compiler": _compiler(environment.CXX, CXX_COMPILERS),
        "Python headers": _headers(),
        "ptxas": _ptxas(triton),
        "GPU": _gpu() if torch.present else Tool(present=False, detail="only torch can tell"),
        "CMake": _cmake(),
        **{name: _installed(distribution) for name, distribution, *_ in _OPTIONAL},
    }
    return MachineFacts(
        tools,
        gpu_unused=torch.present
        and _torch_is_for_cpus()
        and shutil.which("nvidia-smi") is not None,
        interpret=environment.TRITON_INTERPRET.get() or None,
        libstdcxx=to_preload(),
        gaps=_gaps() if thorough and torch.present and triton.present else (),
    )


# A name, the distribution, what alone needs it, the fix, and the oldest version that serves.
_OPTIONAL = (
    ("signing", "py-minisign", "opforge sign", "pip install 'opforge[sign]'"),
    ("wheels", "auditwheel", "opforge wheel", "pip install 'opforge[wheel]'", "6.4"),
    # fsspec itself comes with torch.
    (
        "remote cache",
        "aiohttp",
        "OPFORGE_REMOTE_CACHE=https://...",
        "pip install 'opforge[remote]'",
    ),
    ("JAX", "jax", "a call of what `opforge build --jax` wrote", "pip install -U jax", "0.5"),
    (
        "tvm-ffi",
        "apache-tvm-ffi",
        "a call of what `opforge build --tvm-ffi` wrote",
        "pip install apache-tvm-ffi",
    ),
)


def judge(machine: MachineFacts) -> list[Finding]:
    tools = machine.tools
    findings = [
        Finding("Python", "ok", platform.python_version()),
        _recent("torch", tools["torch"], OLDEST_TORCH, INSTALL_TORCH, TESTED),
        _recent("Triton", tools["Triton"], OLDEST_TRITON, INSTALL_TRITON, TESTED.values()),
        *(
            _found(name, tools[name], _fix(machine, name))
            for name in ("C compiler", "C++ compiler", "Python headers", "GPU")
        ),
        _interpret_variable(machine),
        _feature(machine, "eager", "operators run on any tensor their body can handle", "torch"),
        _feature(machine, "autograd", "operators with a backward are differentiable", "torch"),
        _inductor(machine),
        _feature(machine, "torch.export", "strict and non-strict", "torch"),
        _packages(machine),
        _kernels_on_gpu(machine),
        _feature(
            machine,
            "Triton interpreter",
            "in use" if interpreting(machine) else f"try {INTERPRET}",
            *("torch", "Triton", "NumPy"),
        ),
        # Only the tools matter: kernels are compiled for a named architecture, without a GPU.
        _feature(
            machine,
            "native build tools",
            "a C compiler, and the ptxas in Triton's wheel",
            *("torch", "Triton", "ptxas", "C compiler"),
        ),
        *(_optional(name, tools[name], *rest) for name, _, *rest in _OPTIONAL),
        _optional(
            "CMake", tools["CMake"], "find_package(opforge)", "pip install cmake", OLDEST_CMAKE
        ),
    ]
    unavailable = {
        feature: Finding(feature, "missing", f"{api} {why}", INSTALL_TESTED)
        for feature, api, why in reversed(machine.gaps)
    }
    known = [unavailable.pop(finding.name, finding) for finding in findings]
    return [*known, *unavailable.values()]


def works(findings: Iterable[Finding]) -> bool:
    """Whether nothing is missing but a GPU, which most commands do without."""
    return not any(f.status == "missing" and f.name not in _WITHOUT_GPU for f in findings)


_WITHOUT_GPU = ("GPU", "Triton kernels on GPU")


def interpreting(machine: MachineFacts) -> bool:
    return environment.is_on(machine.interpret)


def _recent(name: str, package: Tool, oldest: str, fix: str, tested: Collection[str]) -> Finding:
    found = _found(name, package, fix)
    if package.present and _version(found.detail) < _version(oldest):
        return Finding(name, "limited", f"{found.detail} is older than {oldest}", fix)
    if package.present and release(found.detail) not in tested:
        newest = max(tested, key=_version)
        detail = f"{found.detail} was not tested; {oldest} to {newest} were"
        return Finding(name, "limited", detail, INSTALL_TESTED)
    return found


def _optional(name: str, tool: Tool, what: str, fix: str, oldest: str = "0") -> Finding:
    if not tool.present:
        return Finding(name, "optional", f"{tool.detail}; only {what} needs it", fix)
    if _version(tool.detail) < _version(oldest):
        return Finding(name, "limited", f"{tool.detail} is older than {oldest}", fix)
    return Finding(name, "ok", tool.detail)


def _feature(machine: MachineFacts, name: str, detail: str, *needs: str) -> Finding:
    lacking, fix = _lacking(machine, *needs)
    if lacking:
        return Finding(name, "missing", f"lacks {lacking}", fix)
    return Finding(name, "ok", detail)


def _interpret_variable(machine: MachineFacts) -> Finding:
    name = "TRITON_INTERPRET"
    if machine.interpret is None:
        return Finding(name, "ok", "not set: kernels are compiled for the GPU")
    if not interpreting(machine):
        return Finding(name, "ok", f"{machine.interpret!r} is off: kernels are compiled")
    if machine.tools["GPU"].present:
        detail = "kernels run in the interpreter although there is a GPU"
        return Finding(name, "limited", detail, "unset TRITON_INTERPRET")
    return Finding(name, "ok", "kernels run in the interpreter, on the CPU")


def _inductor(machine: MachineFacts) -> Finding:
    name = "torch.compile"
    if not machine.tools["torch"].present:
        return _feature(machine, name, "", "torch")
    needs = ["C++ compiler", "Python headers"]
    if machine.tools["GPU"].present:
        needs += ["Triton", "C compiler"]
    lacking, fix = _lacking(machine, *needs)
    if lacking:
        detail = f"Inductor lacks {lacking}; backend='aot_eager' works"
        return Finding(name, "limited", detail, fix)
    return Finding(name, "ok", "with Inductor")


def _packages(machine: MachineFacts) -> Finding:
    name = "AOTInductor packages"
    compiled = _inductor(machine)
    if compiled.status != "ok":
        return Finding(name, "missing", compiled.detail.partition(";")[0], compiled.fix)
    if machine.libstdcxx:
        detail = "g++ links libstdc++ statically: loading a package ends the process in std::regex"
        fix = f"LD_PRELOAD={machine.libstdcxx} python your_script.py"
        return Finding(name, "limited", detail, fix)
    return Finding(name, "ok", "compiled, and loaded in this process")


def _kernels_on_gpu(machine: MachineFacts) -> Finding:
    name = "Triton kernels on GPU"
    # Triton compiles a small launcher for each kernel signature, against Python.h.
    needs = ("torch", "GPU", "Triton", "C compiler", "Python headers")
    found = _feature(machine, name, machine.tools["GPU"].detail, *needs)
    if found.status == "ok" and interpreting(machine):
        detail = "TRITON_INTERPRET sends kernels to the interpreter"
        return Finding(name, "limited", detail, "unset TRITON_INTERPRET")
    return found


def _found(name: str, tool: Tool, fix: str) -> Finding:
    if tool.present:
        return Finding(name, "ok", tool.detail)
    return Finding(name, "missing", tool.detail, fix)


def _lacking(machine: MachineFacts, *needs: str) -> tuple[str, str]:
    """What is missing, and the commands that install it, each once."""
    absent = [name for name in needs if not machine.tools[name].present]
    named = (f"a {name}" if name.endswith(("compiler", "GPU")) else name for name in absent)
    return " and ".join(named), "; ".join(dict.fromkeys(_fix(machine, name) for name in absent))


_FIXES = {
    "torch": INSTALL_TORCH,
    "Triton": INSTALL_TRITON,
    "ptxas": INSTALL_TRITON,
    "NumPy": "pip install numpy",
    "C compiler": INSTALL_COMPILER,
    "C++ compiler": INSTALL_COMPILER,
    "Python headers": INSTALL_HEADERS,
}


def _fix(machine: MachineFacts, name: str) -> str:
    torch = machine.tools["torch"]
    if name != "GPU" or not torch.present:
        return _FIXES.get(name, INSTALL_TORCH)
    if machine.gpu_unused:
        release = ".".join(map(str, _version(torch.detail)))
        return f"pip install --force-reinstall 'torch=={release}.*'  (a build with CUDA)"
    return f"{INTERPRET}  (runs kernels on the CPU)"


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])


def _package(name: str) -> Tool:
    """Imports it: a package can be installed and still fail to import."""
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        return Tool(present=False, detail="not installed" if error.name == name else str(error))
    except (ImportError, OSError) as error:
        # An OSError comes from a shared library that torch opens itself.
        return Tool(present=False, detail=f"installed, but does not import: {error}")
    return Tool(present=True, detail=str(module.__version__))


def _compiler(variable: environment.Variable, candidates: tuple[str, ...]) -> Tool:
    """Runs it: on a Mac without the command line tools, `cc` exists but only asks for them."""
    try:
        given = shlex.split(variable.get())
    except ValueError as error:
        detail = f"{variable.name}={variable.get()} cannot be read as a command: {error}"
        return Tool(present=False, detail=detail)
    names = (given[0],) if given else candidates
    path = _first(names)
    if path is None:
        asked = f"{variable.name}={given[0]}: not found" if given else ""
        return Tool(present=False, detail=asked or f"found none of {', '.join(names)}")
    return _run(path)


def _run(path: str) -> Tool:
    """What a program says of its version."""
    try:
        # The user's own compiler, found as every build tool finds it.
        ran = subprocess.run(  # noqa: S603
            [path, "--version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=30,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return Tool(present=False, detail=f"{path} does not run: {error}")
    return Tool(present=True, detail=ran.stdout.partition("\n")[0] or path)


def _installed(distribution: str) -> Tool:
    """Without importing it: JAX takes seconds."""
    try:
        return Tool(present=True, detail=importlib.metadata.version(distribution))
    except importlib.metadata.PackageNotFoundError:
        return Tool(present=False, detail="not installed")


def _cmake() -> Tool:
    path = shutil.which("cmake")
    if path is None:
        return Tool(present=False, detail="not installed")
    found = _run(path)
    return Tool(found.present, found.detail.removeprefix("cmake version "))


def _first(programs: Iterable[str]) -> str | None:
    return next(filter(None, map(shutil.which, programs)), None)


def _gaps() -> tuple[tuple[str, str, str], ...]:
    # It imports most of torch's compiler, and some of that warns.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ._compat import private_apis  # noqa: PLC0415

        return tuple(private_apis.gaps())


def _headers() -> Tool:
    header = Path(sysconfig.get_path("include")) / "Python.h"
    present = header.is_file()
    return Tool(present=present, detail=str(header) if present else f"no {header}")


def _ptxas(triton: Tool) -> Tool:
    if not triton.present:
        return Tool(present=False, detail="not found; it comes with Triton")
    spec = importlib.util.find_spec("triton.backends.nvidia")
    folders = [] if spec is None else spec.submodule_search_locations or []
    path = next((p for f in folders if (p := Path(f) / "bin" / "ptxas").is_file()), None)
    if path is None:
        return Tool(present=False, detail="not in this Triton's wheel")
    return Tool(present=True, detail=str(path))


def _gpu() -> Tool:
    import torch  # noqa: PLC0415  # it may be missing

    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        available = torch.cuda.is_available()
    if available:
        name = torch.cuda.get_device_name()
        if torch.version.hip is not None:
            arch = torch.cuda.get_device_properties().gcnArchName
            return Tool(present=True, detail=f"{name}, {arch.partition(':')[0]}")
        major, minor = torch.cuda.get_device_capability()
        return Tool(present=True, detail=f"{name}, capability {major}.{minor}")
    if given:
        # torch explains a driver that is too old or broken in a warning.
        return Tool(present=False, detail=str(given[0].message))
    if _torch_is_for_cpus():
        return Tool(present=False, detail="this build of torch is CPU-only")
    return Tool(present=False, detail="torch finds no GPU")


def _torch_is_for_cpus() -> bool:
    import torch  # noqa: PLC0415  # it may be missing

    return torch.version.cuda is None and torch.version.hip is None
