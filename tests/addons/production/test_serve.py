"""Export and serve, from a real registry: PEFT folder, merged weights, a stand-in for the hub; by night vLLM swaps adapters.

Stock PEFT and vLLM's stock OpenAI server, which addons.production.serve starts, answer with the tokens of the evaluation.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest

from addons.production.serving import live
from addons.production.traces.store import Store
from flows import export
from flows.promotion import change
from steps.core import params
from steps.core.errors import UserError
from steps.core.records import Trajectory, Turn, read_records
from steps.policy.adapter import adapter_hash
from steps.registry import publish
from steps.registry.model import read_registry
from tests.conftest import ROOT, Project, change_params, end, free_port, python, run, start

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def published(project: Project) -> Iterator[Path]:
    """The run's folder, in whose registry both of its adapters have a version; the newest is the champion."""
    known = params.load(project.folder / "params.yaml", params.RegisterParams)
    before = Path.cwd(), dict(os.environ)
    os.chdir(project.folder)
    try:
        for number in ("001", "002"):
            folder = project.folder / "run" / number
            tested = _as_test(folder)
            publish.publish(project.folder, folder / "adapter", tested, project.folder / "run/000/test", known)
        registry = read_registry(project.folder, known.model)
        newest = max(registry.versions, key=int)
        registry.client.set_registered_model_alias(known.model, "champion", newest)
        yield project.folder
    finally:
        os.chdir(before[0])
        os.environ.clear()
        os.environ.update(before[1])


def _as_test(folder: Path) -> Path:
    """A test evaluation of an iteration: its own, or its validation's figures under that name."""
    if (folder / "test/summary.json").exists():
        return folder / "test"
    found = json.loads((folder / "evaluation/summary.json").read_text())
    made = folder.parent.parent / ".flywheel" / f"test-{folder.name}"
    made.mkdir(exist_ok=True)
    (made / "summary.json").write_text(json.dumps(found | {"split": "test", "n": 30}))
    return made


def test_the_champion_as_a_peft_folder_and_merged(published: Path, tmp_path: Path) -> None:
    import torch
    from transformers import AutoTokenizer

    known = params.load(published / "params.yaml", params.RegisterParams)
    version = export.export(published, known, "champion", tmp_path / "adapter")
    config = json.loads((tmp_path / "adapter/adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(published / "tasks_data/embedded_policy")
    weights = "adapter_model.safetensors"
    made = {adapter_hash(path): path for path in published.glob("run/*/adapter")}
    trained = made[version.tags["adapter_hash"]]
    assert (tmp_path / "adapter" / weights).read_bytes() == (trained / weights).read_bytes()
    card = (tmp_path / "adapter/README.md").read_text()
    assert f"# email_search, version {version.version}" in card
    assert version.tags["adapter_hash"] in card
    with pytest.raises(UserError, match="exists: name a folder that does not"):
        export.export(published, known, "champion", tmp_path / "adapter")

    export.export(published, known, "champion", tmp_path / "merged", merged=True)
    merged, _ = as_its_readme_says(tmp_path / "merged")
    adapted, tokenizer = as_its_readme_says(tmp_path / "adapter")
    ids = torch.arange(5, 45)[None]
    shipped = AutoTokenizer.from_pretrained(ROOT / "tasks_data/embedded_policy")
    asked = [{"role": "user", "content": "What is the budget for Falcon?"}]
    assert tokenizer.apply_chat_template(asked) == shipped.apply_chat_template(asked)
    new = tmp_path / "new"
    new.touch()
    modes = {path.stat().st_mode for name in ("adapter", "merged") for path in (tmp_path / name).iterdir()}
    assert modes == {new.stat().st_mode}
    with torch.no_grad():
        assert torch.allclose(merged(ids).logits, adapted(ids).logits, atol=1e-3)
        with adapted.disable_adapter():
            assert not torch.allclose(merged(ids).logits, adapted(ids).logits, atol=1e-3)


def as_its_readme_says(folder: Path) -> tuple[Any, Any]:
    """(model, tokenizer) as the exported README loads them, in that folder."""
    [snippet] = re.findall(r"```python\n(.+?)```", (folder / "README.md").read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    with contextlib.chdir(folder):
        exec(compile(snippet, "README.md", "exec"), names)
    return names["model"].eval(), names["tokenizer"]


class Hub(BaseHTTPRequestHandler):
    """A stand-in for the Hugging Face Hub: takes the calls before an upload, and refuses the upload itself."""

    calls: ClassVar[list[tuple[str, str, str]]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode(errors="replace")
        self.calls.append((self.path, self.headers.get("Authorization", ""), body))
        if self.path.endswith("/repos/create"):
            return self._send(200, {"url": "http://127.0.0.1/me/agent", "name": "me/agent"})
        if self.path.endswith("/validate-yaml"):  # of the card's head
            return self._send(200, {"errors": [], "warnings": []})
        if "preupload" in self.path:
            files = [
                {"path": one["path"], "uploadMode": "regular", "shouldIgnore": False}
                for one in json.loads(body)["files"]
            ]
            return self._send(200, {"files": files})
        return self._send(403, {"error": "this stand-in takes no commit"})

    def do_GET(self) -> None:
        self._send(404, {"error": "not found"})

    def _send(self, status: int, content: Any) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *_: object) -> None:
        pass


def test_a_push_goes_as_far_as_a_stand_in_for_the_hub_lets_it(
    published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from huggingface_hub import constants

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    monkeypatch.setattr(constants, "ENDPOINT", address)  # what HF_ENDPOINT says as it is imported
    for name, value in {"HF_TOKEN": "hf_planted_secret", "NO_PROXY": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    code = export.main(["--to", str(tmp_path / "out"), "--push", "me/agent"])
    server.shutdown()
    said = capsys.readouterr()
    assert code == 2, said.err
    assert "the hub refuses me/agent" in said.err
    assert "hf_planted_secret" not in said.out + said.err
    paths = [path for path, _, _ in Hub.calls]
    assert "/api/repos/create" in paths
    assert any("/commit/" in path for path in paths), "the files were offered"
    assert all(key == "Bearer hf_planted_secret" for _, key, _ in Hub.calls)
    asked = json.loads(Hub.calls[0][2])
    assert asked.get("private") is True or asked.get("visibility") == "private", asked


def test_a_push_without_a_token_writes_nothing(
    published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    assert export.main(["--to", str(tmp_path / "again"), "--push", "me/agent"]) == 2
    assert "HF_TOKEN is not set" in capsys.readouterr().err
    assert not (tmp_path / "again").exists()


def evaluated_turns(folder: Path) -> list[Turn]:
    """Every turn of the first three scenarios of an iteration's evaluation."""
    trajectories = read_records(Trajectory, folder / "evaluation" / "trajectories.parquet")
    return [turn for trajectory in trajectories[:3] for turn in trajectory.turns]


def test_stock_peft_answers_alike(project: Project) -> None:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(project.folder / "tasks_data/embedded_policy", dtype=torch.float32)
    model = PeftModel.from_pretrained(base, project.folder / "run/002/adapter").eval()
    for turn in evaluated_turns(project.folder / "run/002"):
        prompt = torch.tensor([turn.prompt_ids])
        length = len(turn.completion_ids)
        mask = torch.ones_like(prompt)
        answer = model.generate(input_ids=prompt, attention_mask=mask, max_new_tokens=length, do_sample=False)
        assert tuple(answer[0, prompt.shape[1] :].tolist()) == turn.completion_ids


class Served(NamedTuple):
    """A running addons.production.serve."""

    process: subprocess.Popen[str]
    port: int
    token: str
    log: Path


@pytest.fixture(scope="module")
def served(published: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    port, log = free_port(), tmp_path_factory.mktemp("serve") / "serve.log"
    settings = (published / "params.yaml").read_text()
    change_params(published, {"serve": {"canary": 0.5, "min_feedback": 5}})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_LOGGING_LEVEL", "INFO")  # an engine in this process may have made it less
        process = start(
            python("addons.production.serve", "--port", str(port), "--seconds", "1", "--capture"), published, log=log
        )
    until = time.monotonic() + 300
    try:
        while "serving: http" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < until, (published / ".flywheel/serve.log").read_text()[-2000:]
            time.sleep(0.5)
        yield Served(process, port, (published / ".flywheel/serve.key").read_text().strip(), log)
    finally:
        end(process, signal.SIGTERM)
        (published / "params.yaml").write_text(settings)


@pytest.mark.nightly
def test_the_engine_does_not_take_half_of_the_memory(published: Path, served: Served) -> None:
    log = (published / ".flywheel/serve.log").read_text()
    assert re.search(r"Explicitly set \(1\.0/[\d.]+\) GiB for KV cache", log), log[-2000:]


@pytest.mark.nightly
def test_vllms_stock_server_answers_alike(published: Path, served: Served) -> None:
    model = params.load(published / "params.yaml", params.RegisterParams).model
    registry = read_registry(published, model)
    tag = registry.version("champion").tags["adapter_hash"]
    [folder] = (path for path in published.glob("run/00[12]") if adapter_hash(path / "adapter") == tag)
    turns = evaluated_turns(folder)
    assert turns
    for turn in turns:
        body = {"prompt": list(turn.prompt_ids), "max_tokens": len(turn.completion_ids), "return_token_ids": True}
        assert tuple(post(served.port, served.token, body)["token_ids"]) == turn.completion_ids


PROBES = [
    ("GET", "/v1/models", None),
    ("GET", "/metrics", None),
    ("GET", "/openapi.json", None),
    ("GET", "/ping", None),
    ("POST", "/invocations", {"model": "email_search", "prompt": "a", "max_tokens": 1}),
    ("POST", "/tokenize", {"model": "email_search", "prompt": "a"}),
    ("POST", "/adapters", {"name": "email_search", "src": "/tmp", "load_inplace": True}),
    ("DELETE", "/adapters/email_search", None),
    ("POST", "/v1/load_lora_adapter", {"lora_name": "email_search", "lora_path": "/tmp", "load_inplace": True}),
    ("POST", "/v1/unload_lora_adapter", {"lora_name": "email_search"}),
]


def status(served: Served, method: str, path: str, body: Any, **headers: str) -> int:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", **headers}
    request = urllib.request.Request(f"http://127.0.0.1:{served.port}{path}", data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as problem:
        return problem.code


@pytest.mark.nightly
@pytest.mark.parametrize(("method", "path", "body"), PROBES)
def test_the_real_server_is_guarded(served: Served, method: str, path: str, body: Any) -> None:
    key = {"Authorization": f"Bearer {served.token}"}
    assert status(served, method, path, body) == 401
    assert status(served, method, path, body, **key, Host="evil.example") == 421
    assert status(served, method, path, body, **key) == (403 if "adapter" in path else 200)
    assert status(served, "GET", "/health", None, Host="evil.example") == 200


@pytest.mark.nightly
@pytest.mark.parametrize("stream", [False, True])
def test_the_real_server_keeps_what_people_agreed_to(published: Path, served: Served, stream: bool) -> None:
    store = Store(published / ".flywheel/capture")
    before = len(list(store.lines()))
    body: dict[str, Any] = {"model": "email_search", "max_tokens": 24, "stream": stream, "metadata": {"owner": "me"}}
    body["messages"] = [{"role": "user", "content": "What is the budget for Falcon? (jane@example.com)"}]
    chat = f"http://127.0.0.1:{served.port}/v1/chat/completions"

    def send(address: str, fields: Any, **headers: str) -> str:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {served.token}", **headers}
        request = urllib.request.Request(address, json.dumps(fields).encode(), headers)
        with urllib.request.urlopen(request, timeout=240) as answer:
            return str(answer.read().decode())

    send(chat, body)
    assert len(list(store.lines())) == before, "no consent"
    text = send(chat, body, **{"X-Flywheel-Consent": "yes"})
    name = re.search(r'"id":\s*"(chatcmpl-[^"]+)"', text)
    assert name, text
    feedback = {"response_id": name[1], "score": 1}
    taken = json.loads(send(f"http://127.0.0.1:{served.port}/feedback", feedback))
    call, opinion = [line.record for line in store.lines()][before:]
    assert call is not None
    assert opinion is not None
    assert call["key"] == opinion["key"] == taken["conversation"]
    assert call["messages"][-1]["content"] == "What is the budget for Falcon? ([email])"
    assert call["answer"]["content"] or call["answer"]["tool_calls"]
    assert call["metadata"] == {"owner": "me"}


@pytest.mark.nightly
def test_the_served_champion_plays_an_episode(published: Path, served: Served) -> None:
    done = run(python("addons.production.ask", "--port", str(served.port), "--scenario", "2"), published)
    assert done.returncode == 0, done.stderr
    assert "question: What " in done.stdout
    assert re.search(r"^turn 1: search_emails\(", done.stdout, re.MULTILINE), done.stdout
    assert re.search(r"^success: (yes|no); expected: ", done.stdout, re.MULTILINE)
    assert "ended: the environment said that it is done" in done.stdout, done.stdout


@pytest.mark.nightly
def test_a_version_on_trial_gets_its_share_and_people_make_it_champion(published: Path, served: Served) -> None:
    name = params.load(published / "params.yaml", params.RegisterParams).model
    registry = read_registry(published, name)
    champion, until = registry.aliases["champion"], time.monotonic() + 300
    other = next(number for number in registry.versions if number != champion)

    def wait_for(words: str) -> None:
        while words not in served.log.read_text():
            assert served.process.poll() is None, served.log.read_text()
            assert time.monotonic() < until, served.log.read_text()
            time.sleep(0.2)

    def talk(conversation: str) -> tuple[str, str]:
        """(the version that answered, the answer's id)."""
        body = {
            "model": name,
            "max_tokens": 4,
            "messages": [{"role": "user", "content": "What is the budget for Falcon?"}],
        }
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {served.token}"}
        headers |= {"X-Flywheel-Consent": "yes", "X-Flywheel-Conversation": conversation}
        address = f"http://127.0.0.1:{served.port}/v1/chat/completions"
        with urllib.request.urlopen(
            urllib.request.Request(address, json.dumps(body).encode(), headers), timeout=240
        ) as answer:
            return answer.headers["x-flywheel-version"], json.loads(answer.read())["id"]

    assert talk("before")[0] == champion
    with contextlib.chdir(published):  # as flows.promote does where the gate lets it through
        change.decide(registry, "canary", other, "for a test", live.trial_writes(other))
    wait_for(f"version {other} is on trial: it gets 50% of the conversations")
    talks = [talk(f"trial {number}") for number in range(30)]
    versions = [version for version, _ in talks]
    assert min(versions.count(champion), versions.count(other)) >= 5
    assert [talk(f"trial {number}")[0] for number in range(30)] == versions, "each conversation stays with its version"
    for version, response in talks:
        body = {"response_id": response, "score": float(version == other)}
        assert status(served, "POST", "/feedback", body, Authorization=f"Bearer {served.token}") == 201
    wait_for(f"version {other} is promoted, people's feedback on the canary: mean score 1.000 of")
    wait_for(f"now serving version {other} in place of {champion}")
    assert talk("after")[0] == other
    aliases = read_registry(published, name).aliases
    assert (aliases["champion"], aliases["previous"]) == (other, champion)
    assert "canary" not in aliases
    registry.client.set_registered_model_alias(name, "champion", champion)
    wait_for(f"now serving version {champion} in place of {other}")


@pytest.mark.nightly
def test_the_server_follows_the_alias_without_a_restart(published: Path, served: Served) -> None:
    process, port, token, log = served
    known = params.load(published / "params.yaml", params.RegisterParams)
    registry = read_registry(published, known.model)
    until = time.monotonic() + 300
    first, before = ask(port, token), len(log.read_text())
    champion = registry.aliases["champion"]
    other = next(number for number in registry.versions if number != champion)
    registry.client.set_registered_model_alias(known.model, "champion", other)
    while f"now serving version {other} in place of {champion}" not in log.read_text()[before:]:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < until, log.read_text()
        time.sleep(0.5)
    second = ask(port, token)
    registry.client.set_registered_model_alias(known.model, "champion", champion)
    while f"now serving version {champion} in place of {other}" not in log.read_text()[before:]:
        assert time.monotonic() < until, log.read_text()
        time.sleep(0.5)
    assert ask(port, token) == first
    assert second != first, "the two adapters answer with other logprobs"
    with pytest.raises(urllib.error.HTTPError, match="401"):
        ask(port, "wrong")
    hashes = {path.name for path in (published / ".flywheel/served").iterdir()}
    assert hashes == {adapter_hash(published / f"run/{number}/adapter") for number in ("001", "002")}


def post(port: int, token: str, body: dict[str, Any]) -> dict[str, Any]:
    """The first choice of a greedy completion of the served adapter."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    data = json.dumps({"model": "email_search", "temperature": 0, **body}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", data, headers)
    with urllib.request.urlopen(request, timeout=240) as answer:
        return dict(json.loads(answer.read())["choices"][0])


def ask(port: int, token: str) -> list[float]:
    """The logprobs of a short completion."""
    choice = post(port, token, {"prompt": "What is the budget for Falcon?", "max_tokens": 8, "logprobs": 1})
    return [round(logprob, 4) for logprob in choice["logprobs"]["token_logprobs"]]
