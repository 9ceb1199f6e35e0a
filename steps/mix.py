"""Mix: a copy of one task's data beside that of the others, in a run of several tasks.

dvc.yaml can name a folder by a parameter, but not as many folders as a parameter has names. So there is one such stage for
each task in `tasks`, and all other stages depend on the folder that holds the copies. They are stale when the data of any
of their tasks changes, and not when that of another task does.
"""

from __future__ import annotations

from steps.core.progress import say
from steps.runner.stage import Input, Output, main


def mix(task_data: Input, copy: Output) -> None:
    """Copy the folder `task_data`."""
    import shutil

    # A rubric is no part of a task's data, as .dvcignore has it: a judge model scores no mixed run.
    shutil.copytree(task_data, copy, ignore=shutil.ignore_patterns("__pycache__", "rubric.md"))
    say(f"{sum(path.is_file() for path in copy.rglob('*'))} files of {task_data}")


if __name__ == "__main__":
    main(mix)
