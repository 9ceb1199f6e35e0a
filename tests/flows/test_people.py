"""People's own keys for MLflow's server: what they open, what only a promoter's opens, and how they are taken back."""

from __future__ import annotations

import asyncio
import json
import stat
from pathlib import Path
from typing import Any

import pytest

from flows.deployment import people
from flows.deployment.mlflow_server import Guard
from steps.core.errors import UserError
from tests.flows.test_mlflow_server import basic

ALIAS = "/api/2.0/mlflow/registered-models/alias"


def asked(
    root: Path, user: str, key: str, path: str = "/", body: bytes = b"", query: bytes = b"", method: str = "POST"
) -> int:
    """The status with which a guard answers; behind it, all is 200, where the body must have arrived whole."""
    sent: list[Any] = []
    parts = [body[:5], body[5:]]

    async def receive() -> Any:
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    async def behind(scope: Any, receive: Any, send: Any) -> None:
        arrived, is_more = b"", True
        while is_more:
            message = await receive()
            arrived, is_more = arrived + message["body"], message["more_body"]
        assert arrived == body
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", b"127.0.0.1:5000"), (b"authorization", basic(key, user).encode())]
    scope = {"type": "http", "method": method, "path": path, "query_string": query, "headers": headers}
    asyncio.run(Guard(behind, "everything", root)(scope, receive, send))
    return int(sent[0]["status"])


def test_a_key_opens_for_its_person_until_it_is_taken_back(tmp_path: Path) -> None:
    alice, bob = people.add(tmp_path, "alice", False), people.add(tmp_path, "bob", True)
    assert asked(tmp_path, "alice", alice) == asked(tmp_path, "bob", bob) == 200
    assert asked(tmp_path, "alice", bob) == asked(tmp_path, "carol", alice) == asked(tmp_path, "alice", "") == 401
    assert asked(tmp_path, "anybody", "everything") == 200
    newer = people.add(tmp_path, "alice", False)
    assert asked(tmp_path, "alice", alice) == 401
    assert asked(tmp_path, "alice", newer) == 200
    people.remove(tmp_path, "alice")
    assert asked(tmp_path, "alice", newer) == 401
    assert asked(tmp_path, "bob", bob) == 200


def test_the_file_holds_no_key_and_is_the_owners(tmp_path: Path) -> None:
    key = people.add(tmp_path, "alice", False)
    file = tmp_path / people.FILE
    assert key not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("path", "body", "is_guarded"),
    [
        (ALIAS, b'{"name": "toy", "alias": "champion", "version": "3"}', True),
        (ALIAS, b'{"name": "toy", "alias": "Champion", "version": "3"}', True),
        (ALIAS, b'{"name": "toy", "alias": "previous", "version": "3"}', True),
        (ALIAS, b'"{\\"alias\\": \\"champion\\"}"', True),
        (ALIAS, b"not JSON", True),
        (ALIAS, b"", True),
        (ALIAS, b'{"alias": "challenger"' + b" " * 70_000 + b"}", True),
        (ALIAS.replace("/api/2.0", "/ajax-api/2.0"), b'{"alias": "champion"}', True),
        (ALIAS.replace("/alias", "//alias/"), b'{"alias": "champion"}', True),
        (ALIAS, b'{"name": "toy", "alias": "challenger", "version": "3"}', False),
        (ALIAS.replace("alias", "delete"), b'{"name": "toy"}', True),
        (ALIAS.replace("alias", "rename"), b'{"name": "toy", "new_name": "other"}', True),
        ("/api/2.0/mlflow/model-versions/delete", b'{"name": "toy", "version": "3"}', True),
        ("/api/2.0/mlflow/model-versions/set-tag", b'{"name": "toy", "version": "3"}', False),
        ("/api/2.0/mlflow/runs/create", b"{}", False),
    ],
)
def test_only_promoters_change_which_version_is_served(
    tmp_path: Path, path: str, body: bytes, is_guarded: bool
) -> None:
    alice, bob = people.add(tmp_path, "alice", False), people.add(tmp_path, "bob", True)
    assert asked(tmp_path, "alice", alice, path, body) == (403 if is_guarded else 200)
    assert asked(tmp_path, "bob", bob, path, body) == asked(tmp_path, "x", "everything", path, body) == 200


def test_an_alias_in_the_address_counts_as_well(tmp_path: Path) -> None:
    alice = people.add(tmp_path, "alice", False)
    body = b'{"alias": "challenger"}'
    assert asked(tmp_path, "alice", alice, ALIAS, body, b"name=toy&alias=champion", "DELETE") == 403
    assert asked(tmp_path, "alice", alice, ALIAS, b"", b"name=toy&alias=challenger", "DELETE") == 200


@pytest.mark.parametrize("text", ["", "[]", "{", '{"alice": 3}', '{"alice": ["x"]}'])
def test_a_damaged_file_opens_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / ".flywheel").mkdir()
    (tmp_path / people.FILE).write_text(text)
    with pytest.raises(UserError, match=r"mlflow.people is damaged: delete it"):
        people.read(tmp_path)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert people.main(["add", "alice"]) == people.main(["add", "bob", "--promoter"]) == 0
    alice = capsys.readouterr().out.split()[0]
    assert asked(tmp_path, "alice", alice) == 200
    assert people.main(["list"]) == 0
    assert capsys.readouterr().out == "alice\nbob (promoter)\n"
    assert people.main(["remove", "alice"]) == 0
    assert people.main(["remove", "alice"]) != 0
    assert "nobody is named alice: there is bob" in capsys.readouterr().err
    assert people.main(["add", "a b"]) != 0
    assert "cannot be a person's name" in capsys.readouterr().err
    assert json.loads((tmp_path / people.FILE).read_text()).keys() == {"bob"}
