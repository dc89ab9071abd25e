"""What pyproject.toml cannot say: a file that goes beside the package, not into it."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

# Python runs it when it starts; OPFORGE_RECORD and OPFORGE_SERVE then need no other command.
PTH = "opforge.pth"
LINE = (
    "import os; {'OPFORGE_RECORD', 'OPFORGE_SERVE'} & os.environ.keys() "
    "and __import__('opforge.started').started.start()\n"
)


class BuildWithPth(build_py):
    """Editable installs are left as they are."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            Path(self.build_lib, PTH).write_text(LINE, encoding="ascii")

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:  # noqa: FBT001, FBT002
        own = [] if self.editable_mode else [str(Path(self.build_lib, PTH))]
        return [*super().get_outputs(include_bytecode), *own]


setup(cmdclass={"build_py": BuildWithPth})
