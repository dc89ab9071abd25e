"""Ops with a dataclass, an Enum and a NamedTuple, through each way into a library."""

import importlib.util
import re
import subprocess
import zipfile
from pathlib import Path

import pytest

from opforge import native
from opforge.shipping import command
from support.native.config_bodies import Act
from support.processes import ROOT, WITHOUT_PLUGINS, environment, python
from support.uncompiled import Uncompiled

CALLS = Path(__file__).with_name("config_calls")
HAS_JAX = importlib.util.find_spec("jax") is not None


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("config_ops")


@pytest.fixture(scope="module")
def built(folder):
    from support.native import config_ops  # noqa: PLC0415

    with Uncompiled() as executor:
        return native.build(
            config_ops.OPS, folder / "configs", archs=["sm_80"], executor=executor,
            torch=True, tvm_ffi=True, jax=True,
        )  # fmt: skip


def call(folder, file):
    variables = {"OPFORGE_TEST_BUILT": str(folder), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [python(), "-m", "pytest", "-q", "-p", "no:cacheprovider", str(CALLS / file)],
        env=environment(TRITON_INTERPRET="1", **WITHOUT_PLUGINS, **variables),
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_backward_is_carried(built):
    assert not [note for note in built.notes if "backward" in note]


def test_a_python_enum_is_one_enum_of_the_library_with_all_its_members(built):
    header = (built.folder / "include" / "configs.h").read_text()
    assert re.findall(r"CONFIGS_(ACT_\w+) = (\d)", header) == [
        ("ACT_SQUARE", "0"), ("ACT_TANH", "1"), ("ACT_ABS", "2"),
    ]  # fmt: skip
    assert header.count("} configs_Act;") == 1
    assert not re.findall(r"configs_\w+_act\b", header)
    assert "configs_activated(const OpforgeTensor *x, configs_Act act" in header
    assert "act: CONFIGS_ACT_TANH or CONFIGS_ACT_ABS\n" in header
    header = (built.folder / "include" / "configs.hpp").read_text()
    assert re.findall(r"enum class (\w*[Aa]ct)\b", header) == ["Act"]
    assert "const opforge::Tensor &x, Act act, opforge::Tensor &out" in header


def test_fields_of_named_tuples_have_their_names(built):
    header = (built.folder / "include" / "configs.h").read_text()
    assert "float window__low, float window__high, OpforgeTensor *value, OpforgeTensor *slope" in (
        " ".join(header.split())
    )
    assert re.search(r"configs_shaped_backward\(const OpforgeTensor \*grad_value,", header)


@pytest.mark.usefixtures("built")
def test_a_loaded_library_and_tvm_ffi_give_what_eager_gives(folder):
    call(folder, "calls_here.py")


@pytest.mark.usefixtures("built")
def test_a_wheel_gives_what_eager_gives(folder):
    said = command.run(str(folder / "configs"), str(folder / "wheelhouse"), "1.0")
    assert "gradient" not in said
    (wheel,) = (folder / "wheelhouse").iterdir()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    stub = (folder / "site" / "configs" / "__init__.py").read_text()
    assert "class Shaped(NamedTuple):\n    value: Tensor\n    slope: Tensor\n" in stub
    assert "window__low: float | None, window__high: float | None) -> Shaped:" in stub
    assert f"act: Literal[{Act.TANH.value}, {Act.ABS.value}]" in stub
    call(folder, "calls_wheel.py")


@pytest.mark.skipif(not HAS_JAX, reason="JAX is not installed; make test-jax has it")
@pytest.mark.usefixtures("built")
def test_jax_gives_what_eager_gives(folder):
    call(folder, "calls_jax.py")
