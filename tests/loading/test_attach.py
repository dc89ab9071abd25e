"""A library beside the source of its operators: which one runs a call, and the warnings."""

import threading

import pytest
import torch

import opforge
from opforge.errors import BadOption, OpforgeWarning, StaleLibrary, Uncovered
from support.loading import demo_source

X = torch.arange(6.0).view(2, 3)
# Two tensors of double precision, for which the library was not built.
WIDE = X.double()


def test_calls_go_to_the_library_and_the_rest_stays(loading, register, standin):
    add = register()
    ops = loading()
    torch.testing.assert_close(add(X, X), 2 * X)
    assert len(standin.launches) == 1
    assert ops.add.has_source
    text = opforge.explain(add)
    assert "  native    where covered, from libloaded.so" in text
    assert text.splitlines()[0].endswith(f"({opforge.info(add).location})")
    assert ", else the JIT" in text


def test_a_call_that_is_not_covered_runs_the_source_with_one_warning(loading, register, standin):
    add = register()
    loading()
    with pytest.warns(OpforgeWarning, match=r"libloaded.so does not cover .*type fp64") as w:
        torch.testing.assert_close(add(WIDE, WIDE), 2 * WIDE)
    assert [warned.filename for warned in w] == [__file__]
    add(WIDE, WIDE)
    add(X.int(), X.int())
    assert standin.launches == []


def test_strict_raises_instead(loading, register):
    add = register()
    loading(strict=True)
    with pytest.raises(RuntimeError, match="type fp64, expected") as failed:
        add(WIDE, WIDE)
    assert f"opforge build {demo_source.__file__} --arch sm_80" in str(failed.value)
    assert "strict=False" in str(failed.value)
    torch.testing.assert_close(add(X, X), 2 * X)
    loading(strict=False)
    with pytest.warns(OpforgeWarning):
        torch.testing.assert_close(add(WIDE, WIDE), 2 * WIDE)


@pytest.fixture
def for_cuda(dist, standin, adapter):
    """The library as it is without `host_memory`: CPU tensors are not its."""
    made = opforge.load(dist, adapter=adapter)
    yield made
    made.close()


def test_a_cpu_tensor_is_refused_where_only_the_library_may_run(for_cuda, register):
    add = register()
    torch.testing.assert_close(add(X, X), 2 * X)
    said = "demo::add: x is on the CPU, y is on the CPU; the library runs on CUDA"
    with opforge.backend("native"), pytest.raises(Uncovered, match=said) as failed:
        add(X, X)
    assert f"opforge build {demo_source.__file__} --arch sm_80" in str(failed.value)
    for_cuda.strict = True
    with pytest.raises(Uncovered, match=said):
        add(X, X.clone().requires_grad_())
    with opforge.backend("jit"):
        torch.testing.assert_close(add(X, X), 2 * X)
    for_cuda.strict = False
    torch.testing.assert_close(add(X, X), 2 * X)
    for_cuda.strict = True
    for_cuda.close()
    torch.testing.assert_close(add(X, X), 2 * X)


def test_a_strict_library_leaves_traces_alone(for_cuda, register):
    add = register()
    for_cuda.strict = True
    assert add(X.to("meta"), X.to("meta")).shape == X.shape


def test_the_backend_is_chosen_for_a_block(loading, register, standin):
    add = register()
    loading()
    with opforge.backend("jit"):
        torch.testing.assert_close(add(X, X), 2 * X)
        torch.testing.assert_close(add(WIDE, WIDE), 2 * WIDE)
        assert standin.launches == []
        with opforge.backend("native"):
            torch.testing.assert_close(add(X, X), 2 * X)
            assert len(standin.launches) == 1
            with pytest.raises(RuntimeError, match="type fp64"):
                add(WIDE, WIDE)
    with pytest.raises(ZeroDivisionError), opforge.backend("jit"):
        raise ZeroDivisionError
    add(X, X)
    assert len(standin.launches) == 2


def test_the_backend_is_the_threads_own(loading, register, standin):
    add = register()
    loading()
    failed = []

    def call():
        try:
            torch.testing.assert_close(add(X, X), 2 * X)
        except BaseException as error:  # noqa: BLE001 - the main thread looks
            failed.append(error)

    with opforge.backend("jit"):
        other = threading.Thread(target=call)
        other.start()
        other.join()
        add(X, X)
    assert failed == []
    assert len(standin.launches) == 1


def test_an_unknown_backend_is_refused():
    with pytest.raises(BadOption, match=r"no backend 'cuda'\s+fix: one of 'auto', 'native'"):
        opforge.backend("cuda").__enter__()


def test_an_error_of_the_source_is_reported(loading, register):
    def fails(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        raise ValueError("the body's own words")

    add = register(fails)
    with pytest.warns(OpforgeWarning, match=r"not the source that .*libloaded\.so was built from"):
        loading()
    with opforge.backend("jit"), pytest.raises((RuntimeError, ValueError), match="own words"):
        add(X, X)


def test_a_backward_of_the_source_is_kept(loading, register, standin):
    add = register(backward=demo_source.add_backward, setup_context=demo_source.save)
    x = X.clone().requires_grad_()
    add(X, X)
    add(x, x)
    loading()
    out = add(x, x)
    assert len(standin.launches) == 1
    out.sum().backward()
    torch.testing.assert_close(x.grad, torch.full((2, 3), 2.0))
    torch.testing.assert_close(add(X, X), 2 * X)
    assert len(standin.launches) == 2


def test_another_source_is_warned_about_and_both_are_named(loading, register, dist):
    add = register(demo_source.add_double)
    with pytest.warns(OpforgeWarning) as warned:
        loading()
    text = str(warned[0].message)
    assert (
        f"demo::add ({opforge.info(add).location}) is not the source that {dist.resolve()}" in text
    )
    assert f"Build it again: opforge build {demo_source.__file__} --arch sm_80" in text
    assert len(warned) == 1


def test_another_signature_is_refused_and_both_are_named(loading, register, dist):
    add = register(demo_source.add_scaled)
    with pytest.raises(StaleLibrary, match="for a different signature of demo::add") as err:
        loading()
    assert "demo::add(Tensor x, Tensor y) -> Tensor in the library, demo::add(" in str(err.value)
    assert f"opforge build {demo_source.__file__} --arch sm_80" in str(err.value)
    torch.testing.assert_close(add(X, X), 2 * X)


def test_another_signature_that_comes_later_is_not_served(loading, register, standin):
    loading()
    with pytest.warns(OpforgeWarning, match=r"(?s)different signature.*not served by libloaded"):
        add = register(demo_source.add_scaled)
    torch.testing.assert_close(add(X, X, 2.0), 3 * X)
    assert standin.launches == []


def test_source_that_comes_later_is_compared_when_it_is_called(loading, register, standin):
    loading()
    add = register(demo_source.add_double)
    with pytest.warns(OpforgeWarning, match="is not the source that") as warned:
        torch.testing.assert_close(add(X, X), 2 * X)
    assert len(standin.launches) == len(warned) == 1
    torch.testing.assert_close(add(X, X), 2 * X)


def test_source_that_calls_what_is_bound_later_is_the_same(loading, register, monkeypatch):
    loading()
    with monkeypatch.context() as unbound:
        unbound.delattr(demo_source, "plus")
        add = register(demo_source.add)
    torch.testing.assert_close(add(X, X), 2 * X)


def test_source_that_comes_later_takes_the_place_of_the_definition(loading, register, standin):
    loading()
    assert opforge.info("demo::add").mode == "custom_op"
    add = register(backward=demo_source.add_backward, setup_context=demo_source.save)
    x = X.clone().requires_grad_()
    add(x, x).sum().backward()
    assert len(standin.launches) == 1
    torch.testing.assert_close(x.grad, torch.full((2, 3), 2.0))
    with pytest.warns(OpforgeWarning):
        add(WIDE, WIDE)


@pytest.mark.parametrize("backend", ["auto", "jit"])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_the_version_rises_once_before_the_source_comes_and_after(
    loading, register, backend, requires_grad
):
    loading()
    x = torch.zeros(4, requires_grad=requires_grad) * 1
    special = torch.ops.demo.special
    special(x, "pdl")
    assert x._version == 1
    register(demo_source.special, name="demo::special", mutates_args=["x"])
    # The first call compares the source with the library's.
    for version in (2, 3):
        with opforge.backend(backend):
            special(x, "pdl")
        assert x._version == version


def test_source_that_is_unregistered_leaves_nothing_behind(loading, register, standin):
    register()
    loading()
    opforge.unregister("demo::add")
    add = register()
    torch.testing.assert_close(add(X, X), 2 * X)
    assert len(standin.launches) == 1


def test_closing_leaves_the_source_alone(loading, register, standin):
    add = register()
    ops = loading()
    add(X, X)
    ops.close()
    torch.testing.assert_close(add(X, X), 2 * X)
    assert len(standin.launches) == 1
    assert "  native " not in opforge.explain(add)


def importing(standin, register, **options):
    """Makes the next launch import the source, and the kernel run afterwards."""
    run, made = standin.execute, []

    def execute(launched):
        if not made:
            made.append(None)
            made[0] = register(**options)
        run(launched)

    standin.execute = execute
    return made


# Freed memory may still hold what it did: without the schema kept, one in three runs crashed.
@pytest.mark.parametrize("run", range(8))
def test_source_that_a_call_imports_takes_over_beneath_it(loading, register, standin, run):
    ops = loading()
    held = torch.ops.demo.add.default
    x = X.clone().requires_grad_(run % 2 == 1)
    made = importing(
        standin, register, backward=demo_source.add_backward, setup_context=demo_source.save
    )
    torch.testing.assert_close(held(x, X).detach(), 2 * X)
    assert made == [held]
    assert ops.add.has_source
    held(x.requires_grad_(), x).sum().backward()
    torch.testing.assert_close(x.grad, torch.full((2, 3), 2.0))
    assert len(standin.launches) == 2


def test_a_source_that_cannot_be_registered_leaves_nothing_behind(loading, standin):
    ops = loading()
    held = torch.ops.demo.add.default

    with pytest.raises(opforge.OpforgeError, match="is not a rule"):
        opforge.op(demo_source.add, name="demo::add", mode="custom_op", sharding=3)
    assert not hasattr(torch.ops.demo, "add")
    assert "not registered" in repr(ops.add)
    with pytest.raises(opforge.OpforgeError, match="stale"):
        held(X, X)


def test_rules_that_come_late_leave_the_library_in_place(loading, register, standin):
    add = register()
    loading()
    add.register_fake(lambda x, y: torch.empty_like(x))
    add.register_autograd(lambda ctx, grad: (grad * 7, None))
    torch.testing.assert_close(add(X, X), 2 * X)
    assert len(standin.launches) == 1
    x = X.clone().requires_grad_()
    add(x, X).sum().backward()
    assert len(standin.launches) == 2
    torch.testing.assert_close(x.grad, torch.full_like(X, 7.0))


def test_a_library_serves_an_op_whose_body_is_for_its_device_alone(loading, register, standin):
    add = register(device_types="cpu")
    ops = loading()
    torch.testing.assert_close(add(X, X), 2 * X)
    assert len(standin.launches) == 1
    ops.close()
    torch.testing.assert_close(add(X, X), 2 * X)
    assert len(standin.launches) == 1


@pytest.mark.parametrize("late", [False, True], ids=["before loading", "after loading"])
def test_a_kernel_for_the_librarys_device_stays_with_a_warning(loading, register, standin, late):
    add = register()
    said = r"demo::add keeps the CPU kernel that .*, so libloaded.so does not serve it"
    if late:
        loading()
    else:
        add.register_kernel("cpu", lambda x, y: x + 100)
    with pytest.warns(OpforgeWarning, match=said):
        add.register_kernel("cpu", lambda x, y: x + 100) if late else loading()
    torch.testing.assert_close(add(X, X), X + 100)
    assert standin.launches == []
