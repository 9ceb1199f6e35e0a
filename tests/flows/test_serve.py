"""Export and serve, from a real registry: PEFT folder, merged weights, a stand-in for the hub; vLLM swaps adapters."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from flows import export
from steps.core import params
from steps.core.errors import UserError
from steps.policy.adapter import adapter_hash
from steps.registry import publish
from steps.registry.model import read_registry
from tests.conftest import ROOT, Project, end, free_port, python, start

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def published(project: Project) -> Iterator[Path]:
    """The run's folder, in whose registry both of its adapters have a version; the newest is the champion."""
    parameters = params.load(project.folder / "params.yaml", params.RegisterParams)
    before = Path.cwd(), dict(os.environ)
    os.chdir(project.folder)
    try:
        for number in ("001", "002"):
            folder = project.folder / "run" / number
            tested = _as_test(folder)
            publish.publish(project.folder, folder / "adapter", tested, project.folder / "run/000/test", parameters)
        registry = read_registry(project.folder, parameters.model)
        newest = max(registry.versions, key=int)
        registry.client.set_registered_model_alias(parameters.model, "champion", newest)
        yield project.folder
    finally:
        os.chdir(before[0])
        os.environ.clear()
        os.environ.update(before[1])


def _as_test(folder: Path) -> Path:
    """A test evaluation of an iteration: its own, or its validation's figures under that name."""
    if (folder / "test/summary.json").exists():
        return folder / "test"
    summary = json.loads((folder / "evaluation/summary.json").read_text())
    copy = folder.parent.parent / ".flywheel" / f"test-{folder.name}"
    copy.mkdir(exist_ok=True)
    (copy / "summary.json").write_text(json.dumps(summary | {"split": "test", "n": 30}))
    return copy


def test_the_champion_as_a_peft_folder_and_merged(published: Path, tmp_path: Path) -> None:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    parameters = params.load(published / "params.yaml", params.RegisterParams)
    version = export.export(published, parameters, "champion", tmp_path / "adapter")
    config = json.loads((tmp_path / "adapter/adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "tasks_data/embedded_policy"
    weights = "adapter_model.safetensors"
    adapters = {adapter_hash(path): path for path in published.glob("run/*/adapter")}
    trained = adapters[version.tags["adapter_hash"]]
    assert (tmp_path / "adapter" / weights).read_bytes() == (trained / weights).read_bytes()
    card = (tmp_path / "adapter/README.md").read_text()
    assert f"# email_search, version {version.version}" in card
    assert version.tags["adapter_hash"] in card
    with pytest.raises(UserError, match="exists: name a folder that does not"):
        export.export(published, parameters, "champion", tmp_path / "adapter")

    export.export(published, parameters, "champion", tmp_path / "merged", merged=True)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    base = AutoModelForCausalLM.from_pretrained(ROOT / "tasks_data/embedded_policy")
    adapted = PeftModel.from_pretrained(base, str(tmp_path / "adapter"))
    ids = torch.arange(5, 45)[None]
    with torch.no_grad():
        assert torch.allclose(merged(ids).logits, adapted(ids).logits, atol=1e-3)
        with adapted.disable_adapter():
            assert not torch.allclose(merged(ids).logits, adapted(ids).logits, atol=1e-3)


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
                {"path": entry["path"], "uploadMode": "regular", "shouldIgnore": False}
                for entry in json.loads(body)["files"]
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

    def log_message(self, *_: object) -> None:
        pass


def test_a_push_goes_as_far_as_a_stand_in_for_the_hub_lets_it(published: Path, tmp_path: Path) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    words = [sys.executable, "-m", "flows.export", "--to", str(tmp_path / "out"), "--push", "me/agent"]
    environment = os.environ | {"HF_ENDPOINT": address, "HF_TOKEN": "hf_planted_secret", "NO_PROXY": "127.0.0.1"}
    process = subprocess.run(words, cwd=published, env=environment, capture_output=True, text=True, timeout=120)
    server.shutdown()
    assert process.returncode == 2, process.stderr
    assert "the hub refuses me/agent" in process.stderr
    assert "hf_planted_secret" not in process.stdout + process.stderr
    paths = [path for path, _, _ in Hub.calls]
    assert "/api/repos/create" in paths
    assert any("/commit/" in path for path in paths), "the files were offered"
    assert all(key == "Bearer hf_planted_secret" for _, key, _ in Hub.calls)
    asked = json.loads(Hub.calls[0][2])
    assert asked.get("private") is True or asked.get("visibility") == "private", asked
    without = {name: value for name, value in environment.items() if name != "HF_TOKEN"}
    words[4] = str(tmp_path / "again")
    process = subprocess.run(words, cwd=published, env=without, capture_output=True, text=True, timeout=120)
    assert (process.returncode, "HF_TOKEN is not set" in process.stderr) == (2, True)


def test_the_server_follows_the_alias_without_a_restart(published: Path, tmp_path: Path) -> None:
    parameters = params.load(published / "params.yaml", params.RegisterParams)
    registry = read_registry(published, parameters.model)
    port, log = free_port(), tmp_path / "serve.log"
    process = start(python("flows.serve", "--port", str(port), "--seconds", "1"), published, log=log)
    try:
        until = time.monotonic() + 300
        while "serving: http" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < until, (published / ".flywheel/serve.log").read_text()[-2000:]
            time.sleep(0.5)
        token = (published / ".flywheel/serve.key").read_text().strip()
        first = ask(port, token)
        champion = registry.aliases["champion"]
        other = next(number for number in registry.versions if number != champion)
        registry.client.set_registered_model_alias(parameters.model, "champion", other)
        while f"now serving version {other} in place of {champion}" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.5)
        second = ask(port, token)
        registry.client.set_registered_model_alias(parameters.model, "champion", champion)
        while f"now serving version {champion} in place of {other}" not in log.read_text():
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.5)
        assert ask(port, token) == first
        assert second != first, "the two adapters answer with other logprobs"
        with pytest.raises(urllib.error.HTTPError, match="401"):
            ask(port, "wrong")
    finally:
        end(process, signal.SIGTERM)
    hashes = {path.name for path in (published / ".flywheel/served").iterdir()}
    assert hashes == {adapter_hash(published / f"run/{number}/adapter") for number in ("001", "002")}


def ask(port: int, token: str) -> list[float]:
    """Logprobs of a greedy completion of the served adapter."""
    body = {
        "model": "email_search",
        "prompt": "What is the budget for Falcon?",
        "max_tokens": 8,
        "temperature": 0,
        "logprobs": 1,
    }
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=240) as answer:
        return [round(logprob, 4) for logprob in json.loads(answer.read())["choices"][0]["logprobs"]["token_logprobs"]]
