"""The folder that HuggingFace's kernels library loads."""

import dataclasses
import importlib.util
import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from opforge.cli import main
from opforge.errors import BadOption
from opforge.shipping import command
from opforge.shipping.command import run as wheel
from opforge.shipping.package import hub_files, read_built
from support.shipped_child import CALL, run

MACHINE = os.uname().machine
BUILDS = [f"torch-stable-abi211-{cuda}-{MACHINE}-linux" for cuda in ("cu120", "cu130")]


@pytest.fixture(scope="module")
def hub(dist, tmp_path_factory):
    folder = tmp_path_factory.mktemp("hub")
    wheel(str(dist), str(folder), "3.1", layout="kernels")
    return folder


def test_each_build_has_the_package_and_its_metadata(hub, dist):
    assert sorted(place.name for place in (hub / "build").iterdir()) == BUILDS
    for name in BUILDS:
        told = json.loads((hub / "build" / name / "metadata.json").read_text())
        assert told.pop("id").startswith("_shipped_ops_cuda_")
        assert told == {
            "name": "shipped-ops",
            "version": 3,
            "license": "unknown",
            "python-depends": [],
            "backend": {"type": "cuda", "archs": ["8.0", "9.0a"]},
        }
        library = hub / "build" / name / "lib/libshipped_ops.so"
        assert library.read_bytes() == (dist / "lib/libshipped_ops.so").read_bytes()


LOAD = """
import torch
torch.version.cuda = torch.version.cuda or "13.0"  # what the loader looks for
from pathlib import Path
from kernels import get_local_kernel
shipped_ops = get_local_kernel(Path(sys.argv[3]))
"""


@pytest.mark.skipif(not importlib.util.find_spec("kernels"), reason="kernels is not installed")
def test_the_librarys_own_loader_loads_it(hub):
    site = Path(importlib.util.find_spec("kernels").origin).parents[1]
    code = CALL.replace("import shipped_ops\n", LOAD)
    done = run(code, site, arguments=[hub], HF_HUB_OFFLINE="1")
    assert done.returncode == 0, done.stderr


def test_ptx_is_for_later_gpus(dist):
    library = read_built(dist)
    place = "share/shipped_ops/manifest.json"
    manifest = json.loads(library.files[place])
    for kernel in manifest["kernels"]:
        for image in kernel["images"]:
            image["ptx_sha256"] = "0" if image["arch"] == "sm_80" else None
    files = library.files | {place: json.dumps(manifest).encode()}
    changed = dataclasses.replace(library, files=files)
    told = json.loads(hub_files(changed, "1!2.0")[f"build/{BUILDS[0]}/metadata.json"])
    assert (told["version"], told["backend"]["archs"]) == (2, ["8.0+PTX", "9.0a"])


def test_the_command_names_what_it_wrote(dist, tmp_path):
    arguments = ["wheel", str(dist), "--layout", "kernels", "-o", str(tmp_path)]
    done = CliRunner().invoke(main, arguments)
    assert done.output.splitlines() == [
        f"{tmp_path / 'build' / name}: 2 operators for sm_80, sm_90" for name in BUILDS
    ]
    # A second time it is the same kernel.
    assert CliRunner().invoke(main, arguments).exit_code == 0


def test_a_library_for_amd_alone_is_refused(dist):
    library = dataclasses.replace(read_built(dist), archs=("gfx90a", "gfx942"))
    with pytest.raises(BadOption, match="is for gfx90a, gfx942, and this layout is for CUDA"):
        hub_files(library, "1")


def test_a_library_for_both_vendors_is_that_of_cuda(dist, tmp_path, monkeypatch):
    library = dataclasses.replace(read_built(dist), archs=("sm_80", "sm_90a", "gfx942"))
    monkeypatch.setattr(command, "read_built", lambda _: library)
    said = wheel(str(dist), str(tmp_path), "1", layout="kernels").splitlines()
    assert "note: it is not loaded on gfx942: this layout is for CUDA" in said
    for place in (tmp_path / "build" / name for name in BUILDS):
        told = json.loads((place / "metadata.json").read_text())
        assert told["backend"] == {"type": "cuda", "archs": ["8.0", "9.0a"]}
        (line,) = [line for line in said if line.startswith(f"{place}: ")]
        assert line.endswith(" for sm_80, sm_90")


def test_served_kernels_have_no_such_layout(tmp_path):
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(BadOption, match="--layout kernels is for libraries"):
        wheel(str(tmp_path), str(tmp_path), "1", layout="kernels")
