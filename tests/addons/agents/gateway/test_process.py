"""The gateway's own process over real sockets, with a fake engine in the test: broken requests, its description, a kill."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

from addons.agents.gateway.answers import DIALECTS
from addons.agents.gateway.description import openapi
from addons.agents.gateway.play import Gateway
from addons.agents.section import Agents
from environments.base import Scenario
from steps.core.errors import UserError
from steps.core.params import Policy
from steps.policy.loading import load_tokenizer
from steps.sampling.turns import Sampled
from tests.conftest import ROOT, free_port
from tests.support.plans import plan

FUZZED = int(os.environ.get("FUZZ_INPUTS", "40")) // 10  # requests of each operation; `make fuzz` makes 1,000
ASK = {"model": "policy", "messages": [{"role": "user", "content": "What is the capital of Peru?"}]}


class Stage:
    """A stage whose fake engine answers "Lima." to everything, except what names a schema that it does not know."""

    def __init__(self, folder: Path) -> None:
        tokenizer = load_tokenizer(Policy())
        self.ids = [*tokenizer.encode("Lima.", add_special_tokens=False), tokenizer.eos_token_id]
        scenario = Scenario.make("toy", "train", [{"role": "user", "content": "?"}], {})
        episodes: list[dict[str, Any]] = [
            {"episode": "001-0", "scenario": scenario.model_dump(mode="json"), "attempt": 0}
        ]
        agents = Agents(concurrency=1, heartbeat_seconds=600)
        self.plan = plan(folder / "journal" / "journal.sqlite", episodes, agents)
        self.gateway = Gateway()
        self.early = self._asked_before_a_batch()
        self.sampled = 0
        threading.Thread(target=self._answer, daemon=True).start()

    def _asked_before_a_batch(self) -> list[int | None]:
        """The statuses of a call without a batch, and of the same call when there is one; None where no answer came."""
        assert self.gateway._start()
        statuses: list[int | None] = []
        with httpx.Client(base_url=f"{self.url}/episodes/001-0/v1/") as client:
            for seconds in (0.5, 30):
                try:
                    statuses.append(client.post("chat/completions", json=ASK, timeout=seconds).status_code)
                except httpx.ReadTimeout:
                    statuses.append(None)
                self.gateway.begin(self.plan)
        return statuses

    def _answer(self) -> None:
        while True:
            message = self.gateway.inbox.get()
            if message is None:  # it was killed
                self.gateway.stop_gateway()
                try:
                    self.gateway.begin(self.plan)
                except (UserError, OSError):  # the test is over
                    return
            results = []
            for request in (message or {}).get("sample", ()):
                self.sampled += 1
                ids = self.ids[: request["limits"]["max_tokens"]]
                reason = "stop" if ids == self.ids else "length"
                results.append(Sampled(request["key"], tuple(ids), (-0.5,) * len(ids), reason)._asdict())
            if results:
                self.gateway.send({"sampled": results})

    @property
    def url(self) -> str:
        return f"http://{self.gateway.address}"

    def lease(self) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {self.gateway.key}"}
        with httpx.Client(base_url=self.url, headers=headers) as client:
            name = client.post("/clients", json={"name": "test", "capacity": 1}).json()["client"]
            [lease] = client.post(f"/clients/{name}/leases", json={"free": 1, "wait": 0}).json()
        return dict(lease)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    before, folder = Path.cwd(), tmp_path_factory.mktemp("gateway")
    (folder / "tasks_data").symlink_to(ROOT / "tasks_data")
    os.chdir(folder)
    os.environ["PYTHONPATH"] = os.fspath(ROOT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(
            "FLYWHEEL_GATEWAY_LISTEN", f"127.0.0.1:{free_port()}"
        )  # so that it is known before there is a batch
        stage = Stage(folder)
    try:
        yield stage
    finally:
        stage.gateway.stop()
        os.chdir(before)
        del os.environ["PYTHONPATH"]


@pytest.fixture(scope="module")
def client(stage: Stage) -> Iterator[httpx.Client]:
    """A client of the only episode."""
    lease = stage.lease()
    headers = {"Authorization": f"Bearer {lease['api_key']}"}
    with httpx.Client(base_url=f"{stage.url}/episodes/001-0/v1/", headers=headers, timeout=30) as client:
        yield client


def broken(draw: random.Random, body: bytes) -> bytes:
    """A request's body with bytes changed, cut, doubled, or put in."""
    place, other = sorted(draw.randrange(len(body) + 1) for _ in range(2))
    kinds = [
        body[:place],
        body[:place] + bytes(draw.randrange(256) for _ in range(8)) + body[place:],
        body[:place] + body[place:other] * 3 + body[other:],
        body.replace(b'"', draw.choice([b"", b"'", b"\\", b"[", b"null"]), draw.randrange(1, 4)),
        draw.choice(
            [b"[" * 5000, b'{"messages":' * 2000, b"\x00" * 50, b'{"n": 1e999}', b'{"messages": {"a": [[[]]]}}']
        ),
    ]
    return draw.choice(kinds)


def test_1000_broken_requests_leave_it_serving(client: httpx.Client) -> None:
    draw, statuses = random.Random(1), Counter[int]()
    body = httpx.Request("POST", "http://x", json=ASK | {"tools": [], "stream": False, "n": 1}).content
    for _ in range(1000):
        answer = client.post(draw.choice(list(DIALECTS)), content=broken(draw, body))
        statuses[answer.status_code] += 1
    assert statuses.keys() <= {200, 400}, statuses
    assert statuses[400] > 500
    assert client.post("chat/completions", json=ASK).json()["choices"][0]["message"]["content"] == "Lima."


MANY_HEADERS = b"".join(b"x-%d: y\r\n" % number for number in range(100_000))
HEADS = {
    "many headers": (b"/health", MANY_HEADERS),
    "a large header": (b"/health", b"x: " + b"a" * 2**24 + b"\r\n"),
    "a header that does not end": (b"/health", b"x: " + b"a" * 2**24),
    "a long address": (b"/" + b"a" * 2**22, b""),
}


@pytest.mark.parametrize("kind", HEADS)
def test_the_head_of_a_request_has_a_limit(stage: Stage, kind: str) -> None:
    address, headers = HEADS[kind]
    host, port = stage.gateway.address.split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        answer = b""
        with contextlib.suppress(OSError):  # it hangs up in the middle
            connection.sendall(b"GET " + address + b" HTTP/1.1\r\nHost: localhost\r\n" + headers + b"\r\n")
            answer = connection.recv(300)
    assert not answer.startswith(b"HTTP/1.1 200"), answer
    pid = stage.gateway.process.pid if stage.gateway.process else 0
    assert int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 < 2**30
    head = {f"x-{number}": "a" * 1000 for number in range(40)}
    assert httpx.get(f"{stage.url}/health", headers=head).status_code == 200


def test_wrong_keys_are_refused(stage: Stage, client: httpx.Client) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic x"}, {"x-api-key": ""}):
        for route in [f"/episodes/001-0/v1/{name}" for name in DIALECTS] + ["/clients", "/clients/x/leases"]:
            assert httpx.post(f"{stage.url}{route}", json=ASK, headers=headers).status_code == 401
        assert httpx.get(f"{stage.url}/status", headers=headers).status_code == 401
    assert httpx.get(f"{stage.url}/health").status_code == 200


@pytest.mark.timeout(7200 if "FUZZ_INPUTS" in os.environ else 300)
def test_schemathesis_finds_nothing(stage: Stage, client: httpx.Client) -> None:
    schema = schemathesis.openapi.from_dict(openapi())
    schema.config.update(base_url=stage.url)
    statuses = Counter[int]()

    def check(case: schemathesis.Case) -> None:
        if "{episode}" in case.path:
            case.path_parameters = {**(case.path_parameters or {}), "episode": "001-0"}
        key = client.headers["Authorization"] if "{episode}" in case.path else f"Bearer {stage.gateway.key}"
        response = case.call(headers={"Authorization": key})
        statuses[response.status_code] += 1
        case.validate_response(response, excluded_checks=[positive_data_acceptance])

    limits = settings(
        max_examples=FUZZED,
        derandomize="FUZZ_INPUTS" not in os.environ,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    for path, operations in openapi()["paths"].items():
        for method in {"get", "post"} & operations.keys():
            limits(given(schema[path][method.upper()].as_strategy())(check))()
    assert statuses[200] > 5, statuses
    print(f"{statuses.total():,} requests, answered {dict(statuses)}")


def test_a_kill_loses_nothing_that_was_answered(stage: Stage, client: httpx.Client) -> None:
    asked = ASK | {"messages": [{"role": "user", "content": "Before the kill?"}]}
    first = client.post("chat/completions", json=asked).json()
    count, process = stage.sampled, stage.gateway.process
    assert process is not None
    process.send_signal(signal.SIGKILL)
    until = time.monotonic() + 60
    while True:
        try:
            again = client.post("chat/completions", json=asked, headers={"x-stainless-retry-count": "1"})
            break
        except httpx.HTTPError:
            assert time.monotonic() < until
            time.sleep(0.1)
    assert again.json() == first
    assert stage.sampled == count


def test_what_is_asked_before_there_is_a_batch_waits_for_it(stage: Stage) -> None:
    """So does a call that is asked again while the gateway starts anew: it knows no key of an execution then."""
    assert stage.early == [None, 401], "it waits, and then has no key"
