"""`opforge.load`: operators from a library alone."""

import shutil
import subprocess

import minisign
import pytest
import torch

import opforge
from opforge.errors import (
    BadOption,
    BadRegistration,
    MissingBackward,
    NotALibrary,
    Untrusted,
)
from opforge.native.artifacts.build_record import digest_of
from opforge.native.artifacts.hashes import sign, sums_path, written_sums
from support.processes import TORCH_ALONE, environment, python

X = torch.arange(6.0).view(2, 3)
SCALARS = [1.0, 1.0, 1.0, 1.0, 1, 1, 1, 1, 3, 1, 1, 1, True]


def test_an_operator_is_defined_and_runs_natively(loading, standin):
    ops = loading()
    torch.testing.assert_close(torch.ops.demo.add(X, X + 1), 2 * X + 1)
    torch.testing.assert_close(ops.add(X, y=X), 2 * X)
    assert [launch.function for launch in standin.launches] == ["add_kernel"] * 2
    assert str(torch.ops.demo.add.default._schema) == "demo::add(Tensor x, Tensor y) -> Tensor"


def test_every_kind_of_argument_and_output_gets_through(loading):
    loading()
    everything = torch.ops.demo.everything
    x, state = torch.zeros(3, 8), torch.zeros(3)
    out, stats = everything(x, None, state, *SCALARS)
    assert (out.shape, out.dtype, stats.shape, stats.dtype) == (
        (3, 8), torch.float32, (3,), torch.float64,
    )  # fmt: skip
    assert state.tolist() == [1, 1, 1]
    out, stats = everything(x, torch.zeros(8), state, *SCALARS, None, fixed=False)
    assert stats is None
    assert torch.ops.demo.special(x[0], "pdl") is None


@pytest.fixture
def signed(dist, tmp_path):
    """A copy of the library and its adapter, whose hashes a key has signed."""
    pair = minisign.KeyPair.generate()
    (tmp_path / "key").write_bytes(bytes(pair.secret_key))
    (tmp_path / "pub").write_bytes(bytes(pair.public_key))
    shutil.copytree(dist / "lib", tmp_path / "lib")
    digests = {f"lib/{file.name}": digest_of(file) for file in tmp_path.glob("lib/*.so")}
    sums = tmp_path / sums_path("loaded")
    sums.parent.mkdir(parents=True)
    sums.write_bytes(written_sums(digests))
    sign([sums], tmp_path / "key", str)
    return tmp_path


@pytest.mark.usefixtures("standin")
def test_what_a_trusted_key_has_signed_runs_whatever_becomes_of_its_files(signed):
    options = {"host_memory": True, "adapter": True, "trusted_keys": [signed / "pub"]}
    ops = opforge.load(signed, **options)
    try:
        assert opforge.load(signed, **options) is ops
        shutil.rmtree(signed / "lib")
        torch.testing.assert_close(torch.ops.demo.add(X, X), 2 * X)
    finally:
        ops.close()
        ops.unload()


@pytest.mark.parametrize("name", ["libloaded.so", "libloaded_torch.so"])
def test_no_file_is_opened_that_differs_from_what_a_trusted_key_has_signed(signed, name):
    with (signed / "lib" / name).open("ab") as file:
        file.write(b"more")
    with pytest.raises(Untrusted, match=f"{name} is not what was built"):
        opforge.load(signed, host_memory=True, adapter=True, trusted_keys=[signed / "pub"])
    assert opforge.registry.registry.find("demo::add") is None


@pytest.mark.parametrize(
    ("place", "value", "text"),
    [
        (0, torch.zeros(3, 8, dtype=torch.float64), "x: type fp64, expected fp32"),
        (0, torch.zeros(3, 8, dtype=torch.complex64), "x has .*which no library is built for"),
        (0, torch.zeros(3, 9), "x: size 9 in dimension 1, expected 8"),
        (11, -1, "s_u8 is -1, which u8 does not hold"),
        (16, "gelu", "mode is .*built for:? 'relu' or None"),
        (17, True, "fixed is .*built for:? False"),
    ],
)
def test_a_call_that_is_not_covered_says_why_and_what_to_do(loading, place, value, text):
    loading()
    given = [torch.zeros(3, 8), None, torch.zeros(3), *SCALARS, None, False]
    given[place] = value
    *positional, fixed = given
    with pytest.raises(RuntimeError, match=text) as failed:
        torch.ops.demo.everything(*positional, fixed=fixed)
    assert "import the module that defines demo::everything (ops.py:50)" in str(failed.value)
    assert "opforge build SOURCE.py --arch sm_80 --arch sm_90" in str(failed.value)


def test_going_backward_without_the_source_raises(loading):
    loading()
    x = X.clone().requires_grad_()
    out = torch.ops.demo.add(x, x)
    torch.testing.assert_close(out, 2 * X)
    assert out.requires_grad
    with pytest.raises(MissingBackward, match=r"demo::add .*libloaded\.so.*has no backward"):
        out.sum().backward()
    with torch.no_grad():
        assert not torch.ops.demo.add(x, x).requires_grad
    assert not torch.ops.demo.add(x.detach(), X).requires_grad


def test_forward_mode_is_refused(loading):
    loading()
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(X, torch.ones_like(X))
        with pytest.raises(RuntimeError, match="no forward-mode derivative"):
            torch.ops.demo.add(dual, X)
        with torch.no_grad(), pytest.raises(RuntimeError, match="no forward-mode derivative"):
            torch.ops.demo.add(X, dual)
        torch.testing.assert_close(torch.ops.demo.add(X, X), 2 * X)


def test_torch_func_and_vmap_find_the_operator(loading):
    loading()
    batched = torch.vmap(torch.ops.demo.add.default, in_dims=(0, None))(torch.stack([X, X]), X)
    torch.testing.assert_close(batched, torch.stack([2 * X, 2 * X]))
    with pytest.raises(RuntimeError, match="has no backward"):
        torch.func.grad(lambda x: torch.ops.demo.add(x, x).sum())(X)


def test_a_leaf_that_requires_grad_is_not_written_to(loading):
    loading()
    with pytest.raises(RuntimeError, match="the op mutates a leaf tensor that requires grad"):
        torch.ops.demo.special(torch.zeros(4, requires_grad=True), "pdl")


def test_a_driver_failure_is_not_an_uncovered_call(loading, standin):
    loading()
    standin.fail(1, 719, "cuLaunchKernel")
    with pytest.raises(RuntimeError, match="cuLaunchKernel") as failed:
        torch.ops.demo.add(X, X)
    assert "fix:" not in str(failed.value)
    torch.testing.assert_close(torch.ops.demo.add(X, X), 2 * X)


def test_the_operators_are_listed_with_what_they_run_on(loading, adapter):
    ops = loading()
    assert {op.name.partition("::")[2] for op in ops} <= {*dir(ops)}
    assert len(ops) == 5
    how = "C++" if adapter else "by ctypes"
    runs = f"native where covered, from libloaded.so ({how}), else an error"
    assert repr(ops.add).endswith(f"demo::add(Tensor x, Tensor y) -> Tensor: {runs}>")
    assert repr(ops).endswith(" for sm_80, sm_90a: add, matmul, everything, special, pick>")
    for text in (str(ops), ops._repr_html_(), ops.add._repr_html_()):
        assert runs in text
    assert not ops.add.has_source
    with pytest.raises(AttributeError, match="no torch operator 'sub'; it has add, matmul"):
        ops.sub  # noqa: B018 - it is what raises


def test_explain_knows_the_library(loading, dist):
    loading()
    text = opforge.explain(torch.ops.demo.add)
    assert "  native    where covered, from libloaded.so" in text
    assert f"  fake      from the manifest of {dist.resolve()}" in text
    assert "defined from" in opforge.info("demo::add").reason
    assert "where covered" in opforge.info("demo::add").native


def test_other_options_for_a_library_that_is_loaded_are_refused(loading, dist, adapter):
    loading()
    with pytest.raises(BadOption, match=f"is already loaded, with adapter={adapter}, host_memory"):
        opforge.load(dist, adapter=not adapter, host_memory=True)
    with pytest.raises(BadOption, match="close it first"):
        opforge.load(dist)


def test_closing_takes_the_operators_out_and_loading_brings_them_back(loading):
    ops = loading()
    held = torch.ops.demo.add.default
    ops.close()
    assert not hasattr(torch.ops.demo, "add")
    assert repr(ops).endswith(" for sm_80, sm_90a, closed: add, matmul, everything, special, pick>")
    assert str(ops).splitlines()[0].endswith(" for sm_80, sm_90a, closed:")
    with pytest.raises(BadRegistration, match="defined by a library that was closed"):
        held(X, X)
    with pytest.raises(NotALibrary, match="demo::add has been unregistered, or its library closed"):
        ops.add(X, X)
    again = loading()
    assert again is not ops
    torch.testing.assert_close(torch.ops.demo.add(X, X), 2 * X)


def test_unregistering_an_operator_frees_its_name(loading):
    ops = loading()
    opforge.unregister("demo::add")
    assert not hasattr(torch.ops.demo, "add")
    assert repr(ops.add).endswith(": not registered>")
    assert torch.ops.demo.pick(torch.zeros(77, dtype=torch.int8)).shape == (77,)


def test_a_file_or_a_folder_or_the_adapter_will_do(dist, standin):
    for path in (
        dist,
        dist / "lib",
        dist / "lib" / "libloaded.so",
        dist / "lib" / "libloaded_torch.so",
    ):
        ops = opforge.load(path, host_memory=True)
        assert ops.file == (dist / "lib" / "libloaded.so").resolve()
    ops.close()


def test_two_libraries_with_one_operator_are_refused(loading, dist, tmp_path):
    loading()
    shutil.copytree(dist / "lib", tmp_path / "lib")
    with pytest.raises(
        BadRegistration, match="demo::add is already served by another library"
    ) as err:
        opforge.load(tmp_path, host_memory=True, adapter=False)
    assert str(dist.resolve()) in str(err.value)
    assert str(tmp_path.resolve()) in str(err.value)
    torch.testing.assert_close(torch.ops.demo.add(X, X), 2 * X)


def test_an_operator_of_somebody_else_is_left_alone(loading):
    library = torch.library.Library("demo", "FRAGMENT")
    library.define("pick(Tensor x) -> Tensor")
    with pytest.raises(
        BadRegistration, match="demo::pick is already registered, and not by opforge"
    ):
        loading()
    library._destroy()
    assert not hasattr(torch.ops.demo, "add")


def test_a_requested_adapter_that_is_missing_is_reported(dist, standin, tmp_path):
    (tmp_path / "lib").mkdir()
    shutil.copy(dist / "lib" / "libloaded.so", tmp_path / "lib")
    with pytest.raises(NotALibrary, match=r"no torch adapter: .*libloaded_torch\.so") as failed:
        opforge.load(tmp_path, adapter=True)
    assert "--torch" in str(failed.value)


def run(code, **options):
    return subprocess.run(
        [python(), "-c", f"import sys\n{code}"],
        env=environment(**TORCH_ALONE), capture_output=True, text=True, check=False, **options,
    )  # fmt: skip


def test_no_triton_and_no_source_is_needed(dist, adapter):
    done = run(f"""
import torch
class NoTriton:
    def find_spec(self, name, *rest):
        if name.partition(".")[0] in ("triton", "numpy"):
            raise ImportError(f"{{name}} is not to be imported")
sys.meta_path.insert(0, NoTriton())
from support.standin.driver import load_standin
standin = load_standin(); standin.reset()
import opforge
ops = opforge.load({str(dist)!r}, host_memory=True, adapter={adapter})
assert torch.ops.demo.add(torch.ones(2, 3), torch.ones(2, 3)).shape == (2, 3)
assert len(standin.launches) == 1
assert "opforge.analysis.find" not in sys.modules
assert not any(m.startswith(("triton", "torch._dynamo", "torch._inductor")) for m in sys.modules)
""")
    assert done.returncode == 0, done.stderr


def test_the_adapter_alone_brings_the_operators_with_it(dist):
    done = run(f"""
import torch
torch.ops.load_library({str(dist / "lib" / "libloaded_torch.so")!r})
print(torch.ops.demo.everything.default._schema)
print(torch._C._dispatch_has_kernel_for_dispatch_key("demo::add", "CUDA"))
assert "opforge" not in sys.modules
""")
    assert done.returncode == 0, done.stderr
    schema, has_kernel = done.stdout.splitlines()
    assert schema.startswith(
        "demo::everything(Tensor x, Tensor? bias, Tensor(a!) state, float s_fp16"
    )
    assert has_kernel == "True"


def test_a_backward_that_the_library_carries_is_run(loading, standin):
    loading()
    a, b = X[:, :2].clone().requires_grad_(), torch.ones(2, 2, requires_grad=True)
    out = torch.ops.demo.matmul(a, b)
    assert [launch.function for launch in standin.launches] == ["matmul_kernel"]
    out.sum().backward()
    torch.testing.assert_close(a.grad, torch.full((2, 2), 2.0))
    torch.testing.assert_close(b.grad, torch.full((2, 2), 2.0))
    assert [launch.function for launch in standin.launches[1:]] == ["add_kernel"] * 2
    assert "  backward  carried by " in opforge.explain(torch.ops.demo.matmul)
    with torch.no_grad():
        assert torch.ops.demo.matmul(a, b).shape == (2, 2)


def test_loading_again_keeps_strict_unless_it_is_given(loading):
    first = loading(strict=True)
    assert loading() is first
    assert first.strict
    loading(strict=False)
    assert not first.strict


@pytest.mark.parametrize("option", ["strict", "host_memory"])
def test_invalid_option_values_are_refused(dist, option):
    with pytest.raises(BadOption, match=f"{option} must be True or False, got 'no'"):
        opforge.load(dist, **{option: "no"})
