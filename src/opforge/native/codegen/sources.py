"""All the files of a library, by their path below the output folder."""

from __future__ import annotations

import operator
from collections.abc import Sequence

from ...arch import FIRST_ARCH_SPECIFIC
from ..ir.abi import ABI
from ..ir.cases import Allocate, Argument, Descriptor, Launch
from ..ir.device_attributes import ATTRIBUTES, HIP_ATTRIBUTES, OWN
from ..ir.interface import Op, TensorParam
from ..ir.program import Library
from .c_header import header, summary
from .cpp_header import cplusplus_header
from .dispatch_inc import dispatch
from .images import images_source, kernel_names, kernels_header
from .jax_ffi import jax_module, jax_source
from .manifest import manifest, manifest_source
from .name_table import check_names, shared_names
from .names import part
from .op_source import operation_source
from .templates import fill, runtime
from .torch_adapter import adapter_source
from .tvm_ffi import tvm_ffi_source


def sources(
    library: Library, *, torch: bool = False, tvm_ffi: bool = False, jax: bool = False
) -> dict[str, bytes]:
    """Headers, C sources, manifest, packages for CMake and pkg-config.

    The same program gives the same bytes.

        sources(library)["include/mylib.h"]

    With `torch` also the C++ of the torch adapter, with `tvm_ffi` the functions of tvm-ffi,
    with `jax` the handlers of XLA and the module that registers them.
    """
    name = library.name
    # Of several libraries in one folder, each has its own.
    src = f"src/{name}"
    check_names(library)
    kernels = kernel_names(library)
    archs = ", ".join(arch.built_name for arch in sorted(library.archs)) or "no architecture"
    described = manifest(library)
    texts = {
        f"include/{name}.h": header(library, archs),
        f"include/{name}.hpp": cplusplus_header(library),
        f"include/{name}_dispatch.inc": dispatch(library),
        f"{src}/api.h": fill("api.h", name=name),
        f"{src}/library.h": _library_header(library),
        f"{src}/device_attributes.inc": _device_attributes(),
        f"{src}/kernels.h": kernels_header(library),
        f"{src}/images.c": images_source(library),
        f"{src}/manifest.c": manifest_source(library, described),
        f"lib/cmake/{name}/{name}Config.cmake": fill("config.cmake", name=name),
        f"lib/cmake/{name}/{name}ConfigVersion.cmake": fill("version.cmake", abi=ABI),
        f"lib/pkgconfig/{name}.pc": fill(
            "library.pc", name=name, abi=ABI, summary=summary(library, archs)
        ),
    }
    texts |= {f"{src}/{file}": text for file, text in runtime().items()}
    shared = runtime("include/opforge")
    texts |= {f"include/opforge/{file}": text for file, text in shared.items()}
    if torch:
        texts[f"{src}/torch/{name}_torch.cpp"] = adapter_source(library, described)
        texts |= {f"{src}/torch/{file}": text for file, text in runtime("torch").items()}
    if tvm_ffi:
        texts[f"{src}/tvm_ffi.c"] = tvm_ffi_source(library)
        texts |= {f"{src}/{file}": text for file, text in runtime("tvm_ffi").items()}
    if jax:
        texts[f"{src}/jax_ffi.c"] = jax_source(library)
        texts[f"{src}/jax_ffi.h"] = runtime("jax")["jax_ffi.h"]
        # With one, the order of sys.path decides between this folder and a module of that name.
        texts[f"python/{name}/__init__.py"] = f'"""Python modules over lib{name}.so."""\n'
        texts[f"python/{name}/jax.py"] = jax_module(library)
    for op in library.ops:
        texts[f"{src}/op_{part(op.name)}.c"] = operation_source(op, name, kernels)
    files = {path: text.encode() for path, text in texts.items()}
    files[f"share/{name}/manifest.json"] = described
    return dict(sorted(files.items()))


def _library_header(library: Library) -> str:
    prefixes = "\n".join(f"#define {name} {library.name}_{name}" for name in shared_names())
    constants = {f"OF_MAX_{name}": room(most) for name, most in _maxima(library.ops).items()}
    constants["OF_FIRST_ARCH_SPECIFIC"] = FIRST_ARCH_SPECIFIC
    defined = "\n".join(f"#define {name} {value}" for name, value in constants.items())
    return fill("library.h", name=library.name, prefixes=prefixes, constants=defined)


def room(most: int) -> int:
    """The length of an array for so many: `room(3)` -> 32, `room(33)` -> 64.

    Not exact, so that the runtime stays the same when operators change. The arrays are on the
    stack, where their length costs no time, but for the nodes of a graph.
    """
    return max(32, 1 << (most - 1).bit_length())


def _device_attributes() -> str:
    rows = [
        f"OF_ATTRIBUTE({name.upper()}, {number}, {HIP_ATTRIBUTES[name]})"
        for name, number in ATTRIBUTES.items()
    ]
    head = "/* What a device can be asked, and CUDA's and HIP's numbers. Written by opforge. */"
    rows += [f"OF_ATTRIBUTE({name.upper()}, -1, -1)" for name in OWN]
    return "\n".join([head, *rows]) + "\n"


def _passed(arguments: Sequence[Argument], ranks: Sequence[int]) -> int:
    return len(arguments) + sum(2 * rank + 2 for rank in ranks)


def _maxima(ops: tuple[Op, ...]) -> dict[str, int]:
    """The most that the runtime has in each array."""
    paths = [path for op in ops for case in op.cases for path in case.paths]
    launches = [[s for s in path.steps if isinstance(s, Launch)] for path in paths]
    arguments = [launch.arguments for each in launches for launch in each]
    ranks = [[a.rank for a in each if isinstance(a, Descriptor)] for each in arguments]
    allocated = [sum(isinstance(s, Allocate) for s in path.steps) for path in paths]
    inputs = [sum(isinstance(p, TensorParam) for p in op.params) for op in ops]
    outputs = [len(op.outputs) for op in ops]
    tensors = max([0, *map(operator.add, inputs, outputs)])
    workspaces, most = max([0, *allocated]), max([0, *map(len, launches)])
    return {
        "KEYS": max([0, *(len(op.params) for op in ops)]),
        "TENSORS": tensors,
        "OUTPUTS": max([0, *outputs]),
        "BUFFERS": tensors + workspaces,
        "LAUNCHES": most,
        # A launch may need scratch memory of two kinds.
        "ALLOCATIONS": workspaces + 2 * most,
        # The grid, and the arguments.
        "NUMBERS": 3 + max([0, *map(len, arguments)]),
        "DESCRIPTORS": max([0, *map(len, ranks)]),
        # The arguments, those that a descriptor becomes without a tensor map (its address, sizes,
        # strides and two flags), two pointers to scratch memory, and NULL.
        "PARAMETERS": 3 + max([0, *map(_passed, arguments, ranks)]),
    }
