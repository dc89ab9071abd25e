"""Nothing stale is served: kernels whose code would be another today are left to Triton."""

import importlib
import sys
import textwrap

import pytest
import torch
import triton

from opforge.errors import NotFound, NotServed
from opforge.serving.build import build
from opforge.serving.served_folder import ServedFolder
from support.served_kernels import recorded

CONFIG = """
FACTOR = 2
other = 1

class Base:
    N = 3

class Sizes(Base):
    pass
"""
LIBRARY = textwrap.dedent("""
    import triton
    import triton.language as tl
    import stale_config as config

    exp = tl.exp
    DT = tl.float32
    D = 5
    LOG2E = tl.constexpr(1.44)

    @triton.jit
    def exp2(x):
        return tl.exp2(x * LOG2E)

    @triton.jit
    def softplus(x):
        return tl.log(1.0 + exp2(x))

    @triton.jit
    def helper(x, F: tl.constexpr = D):
        return x * F

    @triton.jit
    def by_module(x_ptr):
        tl.store(x_ptr, tl.load(x_ptr) * config.FACTOR)

    @triton.jit
    def by_class(x_ptr):
        tl.store(x_ptr, tl.load(x_ptr) * config.Sizes.N)

    @triton.jit
    def by_alias(x_ptr):
        tl.store(x_ptr, exp(tl.load(x_ptr)))

    @triton.jit
    def by_dtype(x_ptr):
        tl.store(x_ptr, tl.load(x_ptr).to(DT))

    @triton.jit
    def by_default(x_ptr):
        tl.store(x_ptr, helper(tl.load(x_ptr)))

    @triton.jit
    def first(x_ptr):
        tl.store(x_ptr, softplus(tl.load(x_ptr)))

    @triton.jit
    def second(x_ptr):
        tl.store(x_ptr, exp2(tl.load(x_ptr)))
    """)
KERNELS = ("by_module", "by_class", "by_alias", "by_dtype", "by_default", "first", "second")


def imported(folder, library=LIBRARY, config=CONFIG):
    for name, text in (("stale_config", config), ("stale_library", library)):
        (folder / f"{name}.py").write_text(text)
        sys.modules.pop(name, None)
    importlib.invalidate_caches()
    return importlib.import_module("stale_library")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("library")
    sys.path.insert(0, str(folder))
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    yield folder
    sys.dont_write_bytecode = before
    sys.path.remove(str(folder))
    for name in ("stale_config", "stale_library"):
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def folder(files):
    library = imported(files)

    def launch(x):
        for name in KERNELS:
            getattr(library, name)[(1,)](x)

    return build(recorded(launch), files / "kernels", archs=["sm_80"]).folder


@pytest.fixture
def server(folder, monkeypatch):
    monkeypatch.setattr("opforge._compat.served.device_functions", lambda: (lambda _: 0, lambda: 0))
    return ServedFolder(folder, strict=True, tune_missing=False)


def is_served(server, fn):
    return isinstance(server.kernel_of(fn), server.extension.Kernel)


@pytest.mark.parametrize(
    ("name", "then", "now"),
    [
        ("by_module", "FACTOR = 2", "FACTOR = 20"),
        ("by_alias", "exp = tl.exp\n", "exp = tl.exp2\n"),
        ("by_dtype", "DT = tl.float32", "DT = tl.bfloat16"),
        ("by_default", "D = 5", "D = 50"),
    ],
)
def test_a_value_that_is_another_is_noticed(files, server, name, then, now):
    library = imported(files)
    assert all(is_served(server, getattr(library, name)) for name in KERNELS)
    library = imported(files, *(text.replace(then, now) for text in (LIBRARY, CONFIG)))
    with pytest.raises(NotServed, match="has been edited"):
        server.kernel_of(getattr(library, name)).bind((1,))(torch.ones(1))
    others = [other for other in KERNELS if other != name]
    assert all(is_served(server, getattr(library, other)) for other in others)


def test_lines_above_and_the_order_of_launches_do_not_matter(files, server):
    library = imported(files, "# One more line.\n\n" + LIBRARY)
    # Triton's own hash of the second depends on whether the first was hashed.
    assert all(is_served(server, getattr(library, name)) for name in reversed(KERNELS))


@pytest.mark.parametrize(
    ("name", "change", "told"),
    [
        ("by_module", lambda one: setattr(one.config, "FACTOR", 20), "the global FACTOR"),
        ("by_class", lambda one: setattr(one.config.Base, "N", 4), "the global N"),
        ("second", lambda one: setattr(one.LOG2E, "value", 1.0), "the global LOG2E"),
        ("second", lambda one: one.second._unsafe_update_src("def f(): pass"), "source of second"),
        ("second", lambda one: one.exp2._unsafe_update_src("def f(): pass"), "source of exp2"),
        ("second", lambda one: one.second.add_pre_run_hook(print), "it has pre_run_hooks"),
        ("first", lambda one: setattr(one.first, "pre_run_hooks", [print]), "it has pre_run_hooks"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("standin")
def test_what_a_program_changes_after_the_first_launch_is_noticed(
    files, server, name, change, told
):
    library = imported(files)
    kernel = getattr(library, name)
    launch = server.kernel_of(kernel).bind((0,))
    server.configure()
    launch(torch.ones(1))
    library.config.other = 2
    launch(torch.ones(1))
    change(library)
    with pytest.raises(NotServed, match=told):
        launch(torch.ones(1))


@pytest.mark.usefixtures("standin")
def test_a_knob_that_changes_after_the_first_launch_is_noticed(files, server):
    launch = server.kernel_of(imported(files).by_alias).bind((0,))
    server.configure()
    launch(torch.ones(1))
    with triton.knobs.language.scope():
        triton.knobs.language.fp32_default = "ieee"
        with pytest.raises(NotServed, match=r"knobs\.language\.fp32_default has changed"):
            launch(torch.ones(1))
    launch(torch.ones(1))


def test_each_jitted_function_has_hooks_of_its_own(files, server, standin):
    library = imported(files)
    one, other = library.second, triton.jit(library.second.fn)
    other.add_pre_run_hook(print)
    server.configure()
    server.kernel_of(one).bind((0,))(torch.ones(1))
    with pytest.raises(NotServed, match="it has pre_run_hooks"):
        server.kernel_of(other).bind((0,))(torch.ones(1))


def test_a_variable_that_changes_code_is_compared(files, server, monkeypatch):
    library = imported(files)
    monkeypatch.setenv("TRITON_F32_DEFAULT", "ieee")
    with pytest.raises(NotServed) as caught:
        server.kernel_of(library.by_alias).bind((1,))(torch.ones(1))
    assert (
        "TRITON_F32_DEFAULT, which changes what Triton compiles, is 'ieee', but was not set when "
    ) in str(caught.value)


def test_a_build_wants_the_variables_of_the_recording(files, monkeypatch, tmp_path):
    library = imported(files)
    plain = recorded(library.by_alias[(1,)])
    monkeypatch.setenv("TRITON_F32_DEFAULT", "ieee")
    exact = recorded(library.by_alias[(1,)])
    with pytest.raises(NotFound) as caught:
        build(plain, tmp_path / "kernels", archs=["sm_80"])
    assert (
        "by_alias was recorded with a different TRITON_F32_DEFAULT, "
        "which changes what Triton compiles"
        "\n  found: 'ieee', but not set was recorded\n  fix: build without TRITON_F32_DEFAULT"
    ) in str(caught.value)
    # Two recordings of one kernel are two kernels, of which this build can make one.
    done = build(plain.joined(exact), tmp_path / "kernels", archs=["sm_80"])
    assert ("TRITON_F32_DEFAULT", "ieee") in done.library.settings
    assert len(done.library.functions) == len(done.notes) == 1
    assert is_served(ServedFolder(done.folder, strict=True, tune_missing=False), library.by_alias)
    monkeypatch.delenv("TRITON_F32_DEFAULT")
    with pytest.raises(NotFound, match="fix: build with TRITON_F32_DEFAULT=ieee"):
        build(exact, tmp_path / "others", archs=["sm_80"])
    kernel = ServedFolder(done.folder, strict=True, tune_missing=False).kernel_of(library.by_alias)
    with pytest.raises(NotServed, match=r"is not set, but was 'ieee' when .* was built"):
        kernel.bind(1)()
