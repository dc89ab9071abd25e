"""What a loaded library does first, each in a process of its own, with and without the registry.

    python -m support.loading.first_calls FOLDER     # prints what each gave, as JSON

A library that is loaded before there is a registry is put behind torch in two steps; whatever is
done first must give what it gives in one.
"""
# ruff: noqa: PLC0415, BLE001, T201 - what is imported when matters here; all is told, by printing

import ctypes
import gc
import importlib
import json
import os
import sys
import tempfile
import threading
import traceback
import warnings

import numpy as np
import torch
import torch._dynamo
import torch.export
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

X = torch.arange(6.0).view(2, 3)
SCALARS = [1.0, 1.0, 1.0, 1.0, 1, 1, 1, 1, 3, 1, 1, 1, True]


def execute(launched):
    if launched.function == "add_kernel":
        count = launched.read(3, ctypes.c_int32)
        x, y, out = (
            np.ctypeslib.as_array((ctypes.c_float * count).from_address(address))
            for address in (launched.read(i, ctypes.c_void_p) for i in range(3))
        )
        np.add(x, y, out=out)


def add(*args):
    return torch.ops.demo.add(*args)


def failure(call, *args):
    try:
        call(*args)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def leaf(tensor=X):
    return tensor.clone().requires_grad_()


class Add(torch.nn.Module):
    def forward(self, x, y):
        return torch.ops.demo.add(x, y) * 2


def plain(ops):
    return add(X, X + 1).tolist()


def inference_mode(ops):
    with torch.inference_mode():
        return add(X.clone(), X).tolist()


def requires_grad(ops):
    out = add(leaf(), X)
    return out.tolist(), out.requires_grad, failure(out.sum().backward)


def carried_backward(ops):
    a, b = leaf(X[:, :2]), leaf(torch.ones(2, 2))
    torch.ops.demo.matmul(a, b).sum().backward()
    return a.grad.tolist(), b.grad.tolist()


def tangent(ops):
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(X, torch.ones_like(X))
        return failure(add, dual, X)


def fake_tensors(ops):
    with FakeTensorMode() as mode:
        out = add(mode.from_tensor(X), mode.from_tensor(X))
    return str(out)


def meta_tensors(ops):
    return str(add(X.to("meta"), X.to("meta")))


def other_dispatch_mode(ops):
    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with Watch():
        add(X, X)
        add(X, X)
    return seen


def compiled(ops):
    fn = torch.compile(Add(), backend="aot_eager", fullgraph=True)
    out = fn(leaf(), X)
    return out.tolist(), failure(out.sum().backward)


def exported(ops):
    return str(torch.export.export(Add(), (X, X)).graph)


def traced_with_fakes_before_dispatch(ops):
    return make_fx(Add(), tracing_mode="symbolic", pre_dispatch=True)(X, X).code


def vmapped(ops):
    return torch.vmap(torch.ops.demo.add.default, in_dims=(0, None))(X[None], X).tolist()


def grad_transform(ops):
    return failure(torch.func.grad(lambda x: add(x, x).sum()), X)


def mutated(ops):
    x, state = torch.zeros(4), torch.zeros(3)
    torch.ops.demo.special(x, "pdl")
    out, stats = torch.ops.demo.everything(torch.zeros(3, 8), None, state, *SCALARS)
    return x._version, state._version, str(out.shape), str(stats.shape)


def mutated_leaf(ops):
    return failure(torch.ops.demo.special, torch.zeros(4, requires_grad=True), "pdl")


def uncovered(ops):
    return failure(add, X.double(), X.double())


def threads(ops):
    kinds = 2 * [plain, requires_grad, vmapped, carried_backward, meta_tensors, mutated]
    # Torch itself does not make fakes in two threads at once.
    kinds.append(fake_tensors)
    barrier, given = threading.Barrier(len(kinds)), [None] * len(kinds)

    def work(place):
        barrier.wait()
        given[place] = kinds[place](ops)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(len(given))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return given


def source_afterwards(ops):
    import opforge
    from support.loading import demo_source

    held = torch.ops.demo.add.default
    held(X, X)
    handle = opforge.op(demo_source.add, name="demo::add", mode="custom_op")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        double = handle(X.double(), X.double())
    said = [str(w.message).partition(":")[0] for w in warned]
    return handle(X, X).tolist(), str(double.dtype), said, ops.add.has_source, failure(held, X, X)


def described(ops):
    import opforge

    facts = [opforge.info("demo::add").native, opforge.explain(torch.ops.demo.matmul)]
    return facts, opforge.is_op(torch.ops.demo.pick), repr(ops), [repr(op) for op in ops], len(ops)


def loaded_again(ops):
    import opforge

    same = opforge.load(ops.file, host_memory=True) is ops
    stricter = opforge.load(ops.file, host_memory=True, strict=True)
    return same, stricter is ops, stricter.strict, failure(opforge.load, ops.file)


def closed(ops):
    import opforge

    held = torch.ops.demo.add.default
    ops.close()
    gone = hasattr(torch.ops.demo, "add"), failure(held, X, X), failure(ops.add, X, X)
    opforge.load(ops.file, host_memory=True)
    return gone, add(X, X).tolist()


def unregistered(ops):
    import opforge

    opforge.unregister("demo::add")
    return hasattr(torch.ops.demo, "add"), repr(ops.add)


def autograd_of_somebody_else(ops):
    # Torch says that it overrides one.
    torch.library.register_autograd("demo::add", lambda ctx, grad: (grad * 7, None))
    x = leaf()
    add(x, X).sum().backward()
    return x.grad.tolist()


def fake_of_somebody_else(ops):
    torch.library.register_fake("demo::add", lambda x, y: x.new_empty(7))
    with FakeTensorMode() as mode:
        out = add(mode.from_tensor(X), mode.from_tensor(X))
    return list(out.shape), list(add(X.to("meta"), X.to("meta")).shape)


AFTER_LOADING = {
    name: function
    for name, function in list(globals().items())
    if callable(function) and getattr(function, "__code__", None)
    and function.__code__.co_varnames[:1] == ("ops",)
}  # fmt: skip
if torch.__version__ < "2.12":  # which refuses a second kernel from Python at a key
    del AFTER_LOADING["autograd_of_somebody_else"], AFTER_LOADING["fake_of_somebody_else"]


def other_device(folder):
    import opforge

    opforge.load(folder)
    return failure(add, X, X)


def name_of_somebody_else(folder):
    import opforge

    library = torch.library.Library("demo", "FRAGMENT")
    library.define("pick(Tensor x) -> Tensor")
    refused = failure(opforge.load, folder)
    library._destroy()
    refused = refused, hasattr(torch.ops.demo, "add")
    return refused, opforge.load(folder, host_memory=True).add(X, X).tolist()


def interrupted(folder):
    """What is put off stays so if it cannot be imported."""
    import opforge

    class Once:
        def find_spec(self, name, *_rest):
            if name == "opforge.loading.attach":
                sys.meta_path.remove(self)
                raise KeyboardInterrupt

    opforge.load(folder, host_memory=True)
    sys.meta_path.insert(0, Once())
    try:
        torch.vmap(add)(X[None], X[None])
    except KeyboardInterrupt:
        again = torch.vmap(add)(X[None], X[None])
        return again.tolist(), opforge.info("demo::add").mode
    return "was not interrupted" if "opforge.registry" not in sys.modules else None


def refused_later(folder):
    """Nothing of an operator that cannot be registered stays behind."""
    import opforge

    opforge.load(folder, host_memory=True)
    library = torch.library.Library("demo", "FRAGMENT")
    library.define("special__grad(Tensor x) -> ()")
    first = failure(add, leaf(), X).splitlines()[0]
    gone = [hasattr(torch.ops.demo, op) for op in ("add", "matmul", "special", "add__grad")]
    library._destroy()
    return first, gone, opforge.load(folder, host_memory=True).add(X, X).tolist()


def imported_modules(folder):
    import opforge

    opforge.load(folder, host_memory=True)
    add(X, X)
    return sorted(name for name in sys.modules if name.startswith("opforge"))


ALONE = {f.__name__: f for f in (other_device, name_of_somebody_else)}
QUICK_ONLY = {f.__name__: f for f in (interrupted, refused_later, imported_modules)}


def given_by(function, folder):
    quick = "opforge.registry" not in sys.modules
    if function.__name__ not in AFTER_LOADING:
        return function(folder)
    import opforge

    ops = opforge.load(folder, host_memory=True)
    assert ("opforge.registry" in sys.modules) is not quick
    return function(ops)


def in_a_process(function, folder):
    """Forked, because importing torch takes seconds; of what is frozen no fork has a copy."""
    gc.freeze()
    with tempfile.TemporaryFile("w+") as file:
        child = os.fork()
        if child == 0:
            try:
                given = given_by(function, folder)
            except BaseException:
                given = traceback.format_exc()
            json.dump(given, file)
            file.flush()
            os._exit(0)
        os.waitpid(child, 0)
        file.seek(0)
        text = file.read()
        return json.loads(text) if text else "the process died"


# What torch imports when something is first traced or differentiated.
LATER = (
    "torch._dynamo.backends.debugging", "torch._decomp.decompositions_for_jvp",
    "torch._subclasses.schema_check_mode", "sympy.tensor.tensor", "numpy.ctypeslib",
)  # fmt: skip


def main(folder):
    from support.standin.driver import load_standin

    for name in LATER:
        importlib.import_module(name)
    standin = load_standin()
    standin.reset()
    standin.execute = execute
    compared = {**AFTER_LOADING, **ALONE}
    found = {n: in_a_process(f, folder) for n, f in {**compared, **QUICK_ONLY}.items()}

    # From here on there is a registry, and all that would be imported with it.
    import opforge.loading.attach
    import opforge.op
    import opforge.registry  # noqa: F401

    for name, function in compared.items():
        found[name] = [found[name], in_a_process(function, folder)]
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
