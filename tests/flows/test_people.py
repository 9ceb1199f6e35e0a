"""People's own keys for MLflow's server: what they open, what only a promoter's opens, and how they are taken back."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from addons.production.serving import live
from flows import promote, rollback
from flows.deployment import mlflow_writes, people
from flows.deployment.mlflow_server import Guard
from flows.promotion import change
from steps.core.errors import UserError
from steps.registry.model import RegisteredModel
from tests.flows.test_mlflow_server import basic

API = "/api/2.0/mlflow"
ALIAS = f"{API}/registered-models/alias"


def asked(root: Path, user: str, key: str, path: str = "/", body: bytes = b"", method: str = "GET") -> int:
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
    scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": headers}
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


CREATE = {"name": "toy", "source": f"models:/m-{'0' * 32}", "tags": [{"key": "adapter_hash", "value": "x"}]}


@pytest.mark.parametrize(
    ("method", "path", "body", "who"),
    [
        ("POST", ALIAS, {"name": "toy", "alias": "challenger", "version": "3"}, "everybody"),
        ("POST", ALIAS, {"name": "toy", "alias": "champion", "version": "3"}, "promoters"),
        ("POST", ALIAS, {"name": "toy", "alias": "Champion", "version": "3"}, "promoters"),
        ("POST", ALIAS, {"name": "toy", "alias": "canary", "version": "3"}, "promoters"),
        ("POST", ALIAS.replace("/api/", "/ajax-api/"), {"alias": "previous"}, "promoters"),
        ("DELETE", ALIAS, {"name": "toy", "alias": "challenger"}, "promoters"),
        ("DELETE", ALIAS.replace("alias", "delete"), {"name": "toy"}, "promoters"),
        ("POST", ALIAS.replace("alias", "rename"), {"name": "toy", "new_name": "other"}, "promoters"),
        ("POST", ALIAS.replace("alias", "set-tag"), {"name": "toy", "key": "a", "value": "b"}, "promoters"),
        ("POST", f"{API}/model-versions/set-tag", {"name": "toy", "version": "1", "key": "a"}, "promoters"),
        ("PATCH", f"{API}/model-versions/update", {"name": "toy", "description": "better"}, "promoters"),
        ("POST", f"{API}/model-versions/create", CREATE, "everybody"),
        ("POST", f"{API}/model-versions/create", CREATE | {"source": "s3://flywheel/x"}, "the owner"),
        ("POST", f"{API}/model-versions/create", CREATE | {"tags": [{"key": "promoted"}]}, "promoters"),
        ("POST", f"{API}/runs/create", {}, "everybody"),
        ("POST", f"{API}/experiments/create", {"name": "x"}, "everybody"),
        ("POST", f"{API}/experiments/create", {"name": "x", "artifact_location": "s3://other"}, "the owner"),
        ("POST", f"{API}/experiments/create", {"name": "x", "artifactLocation": "/etc"}, "the owner"),
        ("POST", f"{API}/webhooks", {"url": "http://127.0.0.1"}, "the owner"),
        ("GET", f"{API}/webhooks", None, "the owner"),
        ("GET", f"{API}/runs/get", None, "everybody"),
    ],
)
def test_who_may_change_what(tmp_path: Path, method: str, path: str, body: object, who: str) -> None:
    alice, bob = people.add(tmp_path, "alice", False), people.add(tmp_path, "bob", True)
    text = b"" if body is None else json.dumps(body).encode()
    answers = [asked(tmp_path, *person, path, text, method) for person in (("alice", alice), ("bob", bob))]
    allowed = {"everybody": [200, 200], "promoters": [403, 200], "the owner": [403, 403]}
    assert answers == allowed[who]
    assert asked(tmp_path, "x", "everything", path, text, method) == 200


@pytest.mark.parametrize("name", ["alice", "bob"])
@pytest.mark.parametrize(
    "body",
    [
        b'"{\\"alias\\": \\"challenger\\"}"',
        b"not JSON",
        b"[1]",
        b"[" * 5000,
        b'{"alias": "challenger"' + b" " * 2**20 + b"}",
    ],
)
def test_a_body_that_cannot_be_read_is_refused(tmp_path: Path, name: str, body: bytes) -> None:
    assert asked(tmp_path, name, people.add(tmp_path, name, name == "bob"), ALIAS, body, "POST") == 403


def test_what_decisions_write_is_not_for_everybody() -> None:
    """Each tag that a decision sets stands in the list of those that others may not bring along."""
    model = RegisteredModel(None, "toy", {}, {"champion": "1", "previous": "2"})
    sources = "".join(inspect.getsource(module) for module in (promote, rollback, live))
    tags = set(re.findall(r'"tag", \w+, "(\w+)"', sources)) | {live.SINCE, live.LOOKS, live.WITHDRAWN, live.BACK}
    assert {"promoted", "rolled_back", "restored"} < tags <= mlflow_writes.DECIDED
    assert {write[1] for write in change.champion_writes(model, "2") if write[0] == "tag"} == set()


def test_people_added_at_once_are_all_kept_and_nobody_comes_back(tmp_path: Path) -> None:
    people.add(tmp_path, "gone", True)

    def add(place: int) -> None:
        for number in range(12):
            people.add(tmp_path, f"p{place}-{number}", False)

    threads = [threading.Thread(target=add, args=(place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    people.remove(tmp_path, "gone")
    for thread in threads:
        thread.join()
    assert people.read(tmp_path).keys() == {f"p{place}-{number}" for place in range(4) for number in range(12)}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"alice": 3}',
        '{"alice": ["x"]}',
        '{"alice": ["\u00e9", true]}',
        '{"alice": [null, true]}',
        "[" * 9**6,
    ],
)
def test_a_damaged_file_opens_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / ".flywheel").mkdir()
    (tmp_path / people.FILE).write_text(text)
    with pytest.raises(UserError, match=r"mlflow.people is damaged: delete it"):
        people.read(tmp_path)
    assert asked(tmp_path, "alice", "x") == 503, "and not an error without a sentence"
    with pytest.raises(UserError, match="is damaged"):
        people.add(tmp_path, "carol", True)
    assert (tmp_path / people.FILE).read_text() == text


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
