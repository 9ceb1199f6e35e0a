"""The file .env in the project's root: variables for those who do not keep them in their shell. .env.example lists them all.

What the environment has already wins. The flows read it, and `python -m steps.tracking`; stages get what the flow has, and
whatever `make ui` starts has it too, also in a worktree without such a file.
"""

from __future__ import annotations

import os
from pathlib import Path


def values(root: Path) -> dict[str, str]:
    """The variables of <root>/.env that have a value and that the environment lacks; none where there is no file."""
    path = root / ".env"
    if not path.is_file():
        return {}
    from dotenv import dotenv_values

    found = dotenv_values(path, interpolate=False)  # a password may hold a $
    return {name: value for name, value in found.items() if value and name not in os.environ}


def load(root: Path) -> None:
    """Add them to the environment."""
    os.environ.update(values(root))
