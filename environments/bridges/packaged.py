"""What all tasks of other packages share: the version of the package that their data were made with is checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar

from environments.base import Env, TaskProblem, read_text
from environments.bridges.packages import VERSIONS, versions


class Packaged(Env):
    """A task whose scenarios a package makes; the task's folder says of which version."""

    task: ClassVar[str]  # such as gymnasium:Taxi-v4
    secret: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def load(cls, folder: Path) -> None:
        """TaskProblem where the task's data were written with another version of a package than the installed one."""
        file = folder / VERSIONS
        if not file.is_file():
            return
        written, installed = json.loads(read_text(file)), versions(cls.task)
        for package, version in written.items():
            if installed.get(package) != version:
                raise TaskProblem(
                    f"{file} is of {package} {version}, and {installed.get(package, 'none')} is installed: its scenarios "
                    "may be others. Install that version, or write the file anew with "
                    f"`.venv/bin/python -m environments.bridges.packages '{cls.task}'`"
                )
