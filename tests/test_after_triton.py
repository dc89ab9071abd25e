"""What waits for a module's import."""

import importlib.util
import sys

from opforge.after_triton import after_import


def test_everybody_who_waits_is_called_once(tmp_path, monkeypatch):
    name = "a_module_that_somebody_waits_for"
    (tmp_path / f"{name}.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    finders = [*sys.meta_path]
    called = []
    after_import(name, lambda: called.append(("first", sys.modules[name].x)))
    after_import(name, lambda: called.append(("second", sys.modules[name].x)))
    assert called == []
    # Who only asks whether it is there does not import it.
    assert importlib.util.find_spec(name).origin == str(tmp_path / f"{name}.py")
    assert called == []
    module = importlib.import_module(name)
    assert sorted(called) == [("first", 1), ("second", 1)]
    assert type(module.__spec__.loader) is type(module.__loader__)
    assert type(module.__loader__).__name__ == "SourceFileLoader"
    assert sys.meta_path == finders
    after_import(name, lambda: called.append("at once"))
    assert called[-1] == "at once"
    sys.modules.pop(name)
