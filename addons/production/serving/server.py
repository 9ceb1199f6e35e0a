"""vLLM's OpenAI server for a registered version: its command, its variables, and the swap of its adapter."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from addons.production.serving import capture, shown, trial
from environments.kit import http_client
from steps.core.errors import UserError
from steps.kit import vllm_guard as guard
from steps.policy.loading import chat_template
from steps.policy.served import LIMITED_SERVER, adapter_options, model_options, of_every_server

if TYPE_CHECKING:
    from steps.core.params import Policy
    from steps.policy.chat import Chat

KEY = Path(".flywheel/serve.key")


class Refused(http_client.NoAnswer):
    """The server answered with an error: its status, and what it said."""

    def __init__(self, answer: http_client.Answer) -> None:
        super().__init__(answer.text)
        self.status = answer.status


class Server(NamedTuple):
    """Where the server listens, the model's name there, and the secrets that its guard asks for."""

    host: str
    port: int
    name: str
    key: str
    swap_token: str = ""  # only addons/production/serve.py has it
    capture: Mapping[str, str] = {}  # the variables of addons/production/serving/capture.py; empty: nothing is stored
    served: str = ""  # the file that says which versions are served (addons/production/serving/trial.py)

    @property
    def page(self) -> str:
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    def environment(self, policy: Policy) -> dict[str, str]:
        """The variables of vLLM's process."""
        guarded = {guard.KEY: self.key, guard.SWAP_TOKEN: self.swap_token, guard.HOST: self.host}
        guarded |= {shown.POLICY: policy.model_dump_json()}
        return guarded | dict(self.capture) | ({trial.FILE: self.served} if self.served else {}) | of_every_server()

    def command(self, policy: Policy, adapter: Path, chat: Chat) -> list[str]:
        """The command line of vLLM's server, after `python -m`."""
        words = [LIMITED_SERVER, "--host", self.host, "--port", str(self.port)]
        optional = ((trial.Trial, self.served), (capture.Capture, self.capture))
        chosen = [shown.Shown, *(each for each, is_on in optional if is_on), guard.Guard]
        for middleware in chosen:  # the last sees a request first
            words += ["--middleware", f"{middleware.__module__}.{middleware.__name__}"]
        words += model_options(policy, chat)
        text = chat.renderer.served_template() or (chat_template(policy.chat_template) if policy.chat_template else "")
        words += ["--chat-template", text] if text else []
        words += ["--max-loras", "2"] if self.served else []  # the second is a canary's
        words += ["--served-model-name", f"{self.name}-base", *adapter_options(policy, self.name, str(adapter))]
        return [*words, "--gpu-memory-utilization", str(policy.engine_memory)]

    def models(self) -> dict[str, str]:
        """The served models: their names, and the paths of their files. UserError where this server does not answer."""
        try:
            served = json.loads(self._call("/v1/models"))["data"]
            return {str(model["id"]): str(model.get("root")) for model in served}
        except Refused as problem:
            advice = f"another server than that of `make serve` may listen there, or its key is not that in {KEY}"
            raise UserError(f"{self.page} refuses the request (status {problem.status}): {advice}") from None
        except http_client.Unreachable as problem:
            start = "start one with `make serve` in another terminal and wait for its line 'serving:'"
            raise UserError(f"no model is served at {self.page} ({problem}): {start}") from None
        except (http_client.NoAnswer, ValueError, LookupError, TypeError, AttributeError):
            raise UserError(f"what listens at {self.page} is no model server: name the port of `make serve`") from None

    def missed(self) -> dict[str, int]:
        """What was not captured since the server started, by its reason; empty where it does not say."""
        try:
            return {str(why): int(count) for why, count in json.loads(self._call(capture.COUNTS))["not_stored"].items()}
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return {}

    def swap(self, adapter: Path, name: str = "") -> None:
        """Have the server load another adapter under the same name, or one more under another. UserError where it does not:
        it keeps what it has."""
        fields = {"lora_name": name or self.name, "lora_path": str(adapter), "load_inplace": True}
        try:
            self._call("/v1/load_lora_adapter", json.dumps(fields).encode())
        except Refused as problem:
            raise UserError(f"the server refuses {adapter}: {str(problem)[:300]}") from None
        except http_client.NoAnswer as problem:
            raise UserError(f"the server did not answer the swap to {adapter}: {problem}") from None

    def _call(self, path: str, body: bytes | None = None) -> bytes:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.key}"}
        headers |= {guard.SWAP_HEADER: self.swap_token} if self.swap_token else {}
        method = "GET" if body is None else "POST"
        answer = http_client.asked(method, f"{self.page}{path}", seconds=120, content=body, headers=headers)
        if answer.status >= 300:
            raise Refused(answer)
        return answer.body


def served_key(root: Path) -> str:
    """The key that a running server asks for. UserError where there is none."""
    path = root / KEY
    text = path.read_text().strip() if path.is_file() else ""
    if not text:
        raise UserError(f"{path} holds no key: `make serve`, which makes it, was never started in this folder")
    return text
