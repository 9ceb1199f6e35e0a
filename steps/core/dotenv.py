"""The file .env in the project's root, for those who do not keep environment variables in their shell.

A variable that the environment has already is not replaced. The flows and `python -m steps.tracking` read the file; stages
and the services of `make ui` inherit the variables from them. .env.example lists all variables.
"""

from __future__ import annotations

import os
from pathlib import Path

from steps.core.errors import UserError


def values(root: Path) -> dict[str, str]:
    """The variables of <root>/.env that have a value and that the environment lacks; none where there is no such file."""
    path = root / ".env"
    if not path.is_file():
        return {}
    from dotenv import dotenv_values

    try:
        variables = dotenv_values(path, interpolate=False)  # a password may hold a $
    except UnicodeDecodeError as problem:
        raise UserError(f"{path} is no text in UTF-8 ({problem}): write it anew; .env.example shows the form") from None
    if damaged := [name for name, value in variables.items() if "\0" in f"{name}{value}" or not name]:
        raise UserError(f"{path}: the line of {damaged[0]!r:.60} cannot be a variable: write it anew")
    return {name: value for name, value in variables.items() if value and name not in os.environ}


def load(root: Path) -> None:
    """Add the variables of <root>/.env to the environment."""
    os.environ.update(values(root))
