"""Tables in native builds: conditions on sizes and GPUs, and notes where a table says nothing."""

from opforge.native.ir.cases import Launch
from opforge.native.plan import plan
from opforge.native.tracing.launches import by_table


def blocks_by_condition(made):
    """`{"n <= 8192": "128", ...}` of the first case."""
    found = {}
    for path in made.ops[0].cases[0].paths:
        guards = " and ".join(str(g.condition) for g in path.guards)
        for step in path.steps:
            if isinstance(step, Launch):
                found[guards] = dict(step.constants)["BLOCK"]
    return found


def test_the_table_becomes_conditions(ops, table_of):
    path = table_of({1024: 128, 65536: 256})
    made = plan([ops.scale], (90,), choose=by_table(path))
    found = blocks_by_condition(made)
    assert found == {"8192 < n": "256", "n <= 8192": "128"}
    # fp16 has no rows: the build uses the first configuration, and says so.
    (note,) = made.notes
    assert note.startswith(
        "scale_kernel has 3 autotuning configurations; the tuning table has no rows for "
        "tensors of float16, float16, so the library uses number 0: BLOCK: 64"
    )


def test_equal_configurations_need_no_condition(ops, table_of):
    made = plan([ops.scale], (90,), choose=by_table(table_of({16: 256, 1024: 256, 65536: 256})))
    assert list(blocks_by_condition(made).values()) == ["256"]


def test_an_amd_gpu_takes_its_own_rows(ops, table_of):
    archs = ("sm_80", "gfx942", "gfx950")
    made = plan([ops.scale], archs, choose=by_table(table_of({1024: 128}, arch="gfx942")))
    found = blocks_by_condition(made)
    assert sorted(found.values()) == ["128", "64", "64"]
    ((guards, _),) = [item for item in found.items() if item[1] == "128"]
    assert "device.vendor == 1" in guards
    assert f"device.arch == {0x942}" in guards
    for arch in ("sm_80", "gfx950"):
        assert any(f"no rows for {arch}, only for gfx942" in note for note in made.notes)


def test_rows_by_another_key_are_reported_and_skipped(ops, table_of, monkeypatch):
    path = table_of({1024: 128})
    monkeypatch.setattr(ops.scale_kernel, "keys", ["factor"])
    made = plan([ops.scale], (90,), choose=by_table(path))
    assert set(blocks_by_condition(made).values()) == {"64"}
    assert "rows for it under a different key only (n; tune it again)" in made.notes[0]


def test_notes_name_every_gpu_that_they_are_about(ops, table_of):
    archs = ("sm_80", "sm_86", "sm_90", "gfx942", "gfx950")
    made = plan([ops.scale], archs, choose=by_table(table_of({1024: 512})))
    table = "the tuning table has "
    gone = "but only with configurations that were taken out of the kernel (tune it again)"
    found = {n.partition(table)[2].partition(", so ")[0] for n in made.notes if table in n}
    assert found == {
        "no rows for sm_80 or sm_86, only for sm_90",
        "no rows for gfx942, only for sm_90",
        "no rows for gfx950, only for sm_90",
        f"rows for it on sm_90, {gone}",
        # Of another case, for all of them.
        "no rows for tensors of float16, float16",
    }
