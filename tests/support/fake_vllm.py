"""A fake of vLLM's server, in a thread: it has the paths that policy.kind server uses, and no model.

Its distribution after a text is a hash of the text and of the adapter's content; tokens are drawn by the request's seed. It
fails as `faults` says, by name: see the code. It can be stopped and started again at its address, and then has no adapters.
"""

from __future__ import annotations

import json
import math
import random
import threading
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from addons.fleet import probe
from steps.policy.adapter import adapter_hash
from tests.support.openai_server import QuietServer

IDS = tuple(random.Random(1).randrange(24) for _ in range(48))  # the probe's text
Reply = tuple[int, Any]


def logprobs(adapter: str, ids: list[int], temperature: float) -> dict[int, float]:
    """The next token's, nats."""
    rng = random.Random(f"{adapter} {ids}")
    logits = [rng.gauss(0, 2) / temperature for _ in range(24)]
    total = math.log(sum(map(math.exp, logits)))
    return {token: value - total for token, value in enumerate(logits)}


def make_adapter(folder: Path, content: str, has_probe: bool = True) -> Path:
    """An adapter's folder with the probe that this server's answers match."""
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").write_text(content)
    if has_probe:
        given = [logprobs(adapter_hash(folder), list(IDS[:end]), 1.0) for end in probe.places(IDS)]
        probe.write(folder, probe.of_server(IDS, given, "float32"))
    return folder


class FakeVllm:
    """The server."""

    def __init__(self, uploads: Path, base: str, key: str = "a-key", context: int = 2048, seconds: float = 0.0) -> None:
        self.uploads, self.base, self.key, self.context, self.seconds = uploads, base, key, context, seconds
        self.faults: set[str] = set()
        self.adapters: dict[str, Path] = {}  # by name
        self.latest = ""
        self.asked: list[dict[str, Any]] = []  # bodies of turns
        self.lock = threading.Lock()
        self.port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True
            wbufsize = -1

            def log_message(self, format: str, *_: Any) -> None:
                pass

            def answer(self) -> None:
                content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                status: int
                body: Any
                if self.headers.get("Authorization") != f"Bearer {fake.key}":
                    status, body = 401, {"error": "Unauthorized"}
                elif "down" in fake.faults:
                    status, body = 503, {"error": {"message": "the engine is dead"}}
                else:
                    status, body = fake.handle(self.command, self.path, content)
                if fake.is_stopped:
                    self.close_connection = True
                    return
                data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PUT = answer

        self.is_stopped = False
        self.server = QuietServer(("127.0.0.1", self.port), Handler)
        self.server.daemon_threads = True
        self.port = int(self.server.server_address[1])
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        """As a kill: what is under way gets no answer, and adapters are gone."""
        self.is_stopped = True
        self.server.shutdown()
        self.server.server_close()
        self.adapters.clear()

    def handle(self, method: str, path: str, content: bytes) -> Reply:
        if path == "/health":
            return 200, {}
        if path == "/v1/models":
            return self.models()
        if path.startswith("/flywheel/adapters/") and method == "PUT" and "no uploads" not in self.faults:
            _, _, _, name, file = path.split("/")
            return self.upload(name, file, content)
        body = json.loads(content or b"{}")
        if path == "/v1/load_lora_adapter" and "no updating" not in self.faults:
            return self.load(body["lora_name"], Path(body["lora_path"]))
        if path == "/v1/unload_lora_adapter" and "no updating" not in self.faults:
            if self.adapters.pop(body["lora_name"], None) is None:
                return 404, {"error": {"message": f"The lora adapter '{body['lora_name']}' cannot be found."}}
            return 200, "Success"
        if path == "/inference/v1/generate":
            return self.generate(body)
        return 404, {"detail": "Not Found"}

    def models(self) -> Reply:
        if "another service" in self.faults:
            return 200, "<html>It works!</html>"
        base = {"id": self.base, "root": self.base, "parent": None, "max_model_len": self.context}
        loaded = [{"id": name, "root": str(path), "parent": self.base} for name, path in self.adapters.items()]
        return 200, {"data": [base, *loaded]}

    def upload(self, name: str, file: str, content: bytes) -> Reply:
        folder = self.uploads / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(content)
        return 200, {"path": str(folder) if file.endswith("safetensors") else None}

    def load(self, name: str, path: Path) -> Reply:
        if "no lora" in self.faults:
            return 500, {"error": {"message": "Call to add_lora method failed: LoRA is not enabled."}}
        if "rank" in self.faults:
            return 500, {"error": {"message": "LoRA rank 16 is greater than max_lora_rank 8."}}
        if not path.exists():
            return 404, {"error": {"message": f"Loading lora {name} failed: No adapter found for {path}"}}
        if name in self.adapters:
            return 400, {"error": {"message": f"The lora adapter '{name}' has already been loaded."}}
        self.adapters[name], self.latest = path, name
        if "dies in a load" in self.faults:
            self.faults.remove("dies in a load")
            self.stop()
        return 200, "Success"

    def generate(self, body: dict[str, Any]) -> Reply:
        if "no scale-out" in self.faults:
            return 403, {"error": {"message": "Scale-out endpoints are disabled."}}
        name, sampling = body["model"], body["sampling_params"]
        if name not in self.adapters:
            return 404, {"error": {"message": f"The model `{name}` does not exist."}}
        if "bad" in str(sampling.get("structured_outputs")):
            return 400, {"error": {"message": "Invalid JSON grammar specification."}}
        if "fails" in self.faults:
            return 500, {"error": {"message": "out of memory"}}
        with self.lock:
            self.asked.append(body)
            number = len(self.asked)
        if body["token_ids"] != list(IDS[: len(body["token_ids"])]):
            time.sleep(self.seconds)
        served = adapter_hash(self.adapters[self.latest if "one adapter" in self.faults else name])
        return 200, self.reply(served, name, list(body["token_ids"]), sampling, number)

    def reply(self, served: str, name: str, ids: list[int], sampling: dict[str, Any], number: int) -> dict[str, Any]:
        temperature = sampling.get("temperature", 1.0)
        drawn: list[int] = []
        content = []
        for place in range(sampling["max_tokens"]):
            expected = logprobs(served, [*ids, *drawn], temperature or 1.0)
            seed = len(self.asked) if "unseeded" in self.faults else sampling.get("seed")
            rng = random.Random(f"{seed} {place}")
            token = max(expected, key=lambda one: expected[one] - math.log(-math.log(rng.random())))
            shown = logprobs(served, [*ids, *drawn], 1.0) if "raw" in self.faults else dict(expected)
            if "uneven" in self.faults:  # no two of seven requests in a row have the same bits
                shown = {one: value + number % 7 * 1e-7 for one, value in shown.items()}
            drawn.append(token)
            best = sorted(shown, key=lambda one: -shown[one])[: max(sampling.get("logprobs") or 0, 1)]
            top = [{"token_id": one, "logprob": shown[one], "rank": rank + 1} for rank, one in enumerate(best)]
            content.append({"token_id": token, "logprob": shown[token], "rank": 1, "top_logprobs": top})
        given = None if sampling.get("logprobs") is None else {"content": content}
        choice = {"token_ids": drawn, "finish_reason": "length", "logprobs": given}
        return {"model": "another" if "wrong name" in self.faults else name, "choices": [choice]}
