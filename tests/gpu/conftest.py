"""Without a GPU a module is imported, so that mistakes show, and skipped with all its tests."""

import pytest
import torch


class Unrun(pytest.Module):
    def collect(self):
        self.obj  # noqa: B018  # this imports it
        pytest.skip("no GPU that torch can use")


def pytest_pycollect_makemodule(module_path, parent):
    return None if torch.cuda.is_available() else Unrun.from_parent(parent, path=module_path)
