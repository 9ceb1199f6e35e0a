"""People's own keys for MLflow's server, beside the one of .flywheel/mlflow.key, which opens everything.

    python -m flows.deployment.people add alice              # prints the key, once
    python -m flows.deployment.people add bob --promoter     # may also move the alias `champion`
    python -m flows.deployment.people remove alice           # the key opens nothing from the next request on
    python -m flows.deployment.people list

.flywheel/mlflow.people holds a hash of each key, from which nobody gets the key back. Adding a person again replaces it.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import re
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from steps.core.errors import UserError
from steps.core.keys import write_private
from steps.core.terminal import command_parser, exit_code
from steps.kit.lock import alone

FILE = Path(".flywheel/mlflow.people")
DIGEST = re.compile("[0-9a-f]{64}")
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}"


class Person(NamedTuple):
    """Somebody with a key."""

    sha256: str  # of the key, in hexadecimal digits: a key is random, so that no salt is needed
    is_promoter: bool


def read(root: Path) -> dict[str, Person]:
    """Name -> person; none where there is no file. UserError where the file is damaged, since it must open nothing then."""
    path = root / FILE
    try:
        people = {name: Person(*entry) for name, entry in json.loads(path.read_text()).items()}
        if not all(re.fullmatch(NAME, name) and DIGEST.fullmatch(person.sha256) for name, person in people.items()):
            raise ValueError
        return {name: Person(person.sha256, person.is_promoter is True) for name, person in people.items()}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, AttributeError, RecursionError, OSError):
        raise UserError(f"{path} is damaged: delete it, and give everybody a new key with {__name__}") from None


def add(root: Path, name: str, is_promoter: bool) -> str:
    """Give a person a key, in place of an earlier one; returns it. UserError where the name cannot be one."""
    if not re.fullmatch(NAME, name):
        raise UserError(
            f"{name!r} cannot be a person's name: letters, digits, dots, dashes and underscores, 40 at most"
        )
    key = secrets.token_urlsafe(24)
    with changed(root) as people:
        people[name] = Person(hashlib.sha256(key.encode()).hexdigest(), is_promoter)
    return key


def remove(root: Path, name: str) -> None:
    """Take a person's key back. UserError where there is no such person."""
    with changed(root) as people:
        if name not in people:
            raise UserError(f"nobody is named {name}: there is {', '.join(people) or 'nobody'}")
        del people[name]


@contextlib.contextmanager
def changed(root: Path) -> Iterator[dict[str, Person]]:
    """The people, written again at the end; nobody else changes them meanwhile."""
    path = root / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    with alone(path.with_name(f"{path.name}.lock")):
        people = read(root)
        yield people
        write_private(path, json.dumps(people, indent=1) + "\n")


def is_key_of(person: Person, key: bytes) -> bool:
    return hmac.compare_digest(hashlib.sha256(key).hexdigest(), person.sha256)


def main(words: list[str] | None = None) -> int:
    parser = command_parser("flows.deployment.people", __doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    adding = commands.add_parser("add", help="give a person a key, which is printed once")
    adding.add_argument("--promoter", action="store_true", help="may move the alias champion")
    removing = commands.add_parser("remove", help="take a person's key back")
    for command in (adding, removing):
        command.add_argument("name")
    commands.add_parser("list", help="who has a key")
    options = parser.parse_args(words)

    def work() -> None:
        if options.command == "add":
            print(add(Path.cwd(), options.name, options.promoter))
        elif options.command == "remove":
            remove(Path.cwd(), options.name)
        else:
            for name, person in sorted(read(Path.cwd()).items()):
                print(f"{name}{' (promoter)' if person.is_promoter else ''}")

    return exit_code(work)


if __name__ == "__main__":
    sys.exit(main())
