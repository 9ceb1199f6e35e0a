"""One of vLLM's servers, over HTTP: what it is, its adapters, and turns by token ids both ways.

A turn is one request to /inference/v1/generate, whose `sampling_params` are those that steps/sampling/engine.py gives vLLM
in process, seed included. Nothing is tokenised, rendered or parsed by the server. Left out: which server gets what, and what
becomes of it when one is away (addons/fleet/servers.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from addons.fleet import probe
from environments.kit.http_client import Client, NoAnswer, TooMuch
from steps.core.errors import UserError
from steps.policy.loading import local

if TYPE_CHECKING:
    from addons.fleet.section import Servers
    from steps.core.params import Policy

PREFIX = "flywheel-"  # of the names of adapters on the servers
FILES = ("adapter_config.json", "adapter_model.safetensors")
SHORT = 30.0  # seconds for what computes next to nothing
SMALL, TOKEN = 2**22, 1_024  # bytes of any answer, and further ones for each token and logprob that was asked for
START = (
    "start it as docs/gpu.md says (`make vllm-server`, or the command that `.venv/bin/python -m addons.fleet.vllm_server "
    "--print` prints)"
)
AT_ONCE = 256  # requests under way at a server
DRAWN = 16  # tokens of the requests by which a server's draws are checked
MOST = 20  # logprobs at a place: as many as vLLM gives by default


class Away(Exception):
    """The server gave no answer, or one that says that it is in trouble. Another attempt may succeed."""


class Refused(Exception):
    """The server refuses this request: its status, and why."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Replica:
    """A server, and what is known of it."""

    def __init__(self, url: str, settings: Servers) -> None:
        self.url, self.settings = url.rstrip("/"), settings
        key = os.environ.get(settings.key_env, "").strip()
        if not (key.isascii() and key.isprintable()):
            raise UserError(f"the key in {settings.key_env} holds characters that no HTTP header takes")
        connections = AT_ONCE + 8  # with those for loads and checks
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.http = Client(self.url, headers=headers, connections=connections)
        self.is_here = False  # it answers, and has been checked
        self.listed: list[str] = []  # names of adapters that it has, of this process and of others, the oldest first
        self.held: list[str] = []  # those of them that have shown to be what they should be
        self.turns: set[asyncio.Task[Any]] = set()  # requests under way

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        timeout: float = SHORT,
        content: bytes | None = None,
        most: int = SMALL,
    ) -> Any:
        """The answer's JSON. Away, Refused; UserError where the key is wrong, or where no such server listens."""
        try:
            answer = await self.http.ask(method, path, body=body, content=content, seconds=timeout, most=most)
        except TooMuch as problem:
            raise UserError(f"what listens at {self.url} is no server of vLLM's, for {problem}") from None
        except NoAnswer as problem:
            raise Away(str(problem)) from None
        if answer.status == 401:
            raise UserError(f"the server at {self.url} refuses the key: set {self.settings.key_env} to the server's")
        if answer.status >= 300:
            text = _reason(answer)
            if answer.status == 429 or answer.status > 500:
                raise Away(f"status {answer.status}: {text}")
            raise Refused(answer.status, text)
        try:
            return answer.json() if path != "/health" else {}
        except ValueError:
            if path.endswith("lora_adapter"):  # a line of text
                return {}
            raise UserError(f"what listens at {self.url} is no server of vLLM's: see policy.servers.urls") from None

    async def check(self, policy: Policy) -> None:
        """Whether this is a server for the policy. Away; UserError where it is not, which says what to do."""
        try:
            served = (await self.ask("GET", "/v1/models"))["data"]
            bases = [model for model in served if model.get("parent") is None]
            names = {str(model[field]) for model in bases for field in ("id", "root")}
            context = min(int(model.get("max_model_len") or 0) for model in bases)
        except (Refused, LookupError, TypeError, AttributeError, ValueError):
            raise UserError(f"what listens at {self.url} is no server of vLLM's: see policy.servers.urls") from None
        if not names & {policy.base_model, local(policy).base_model}:
            raise UserError(
                f"the server at {self.url} serves {', '.join(sorted(names))}, and not policy.base_model: "
                f"{policy.base_model}; {START}, or give it that name (--served-model-name)"
            )
        if context < policy.context:
            raise UserError(
                f"the server at {self.url} takes {context} tokens, and policy.context is {policy.context}: start it with "
                f"--max-model-len {policy.context}"
            )
        try:
            await self.ask("POST", "/v1/unload_lora_adapter", {"lora_name": f"{PREFIX}none"})
        except Refused as refused:
            if "cannot be found" not in str(refused):
                raise UserError(
                    f"the server at {self.url} loads no adapters while it runs (status {refused.status}: {refused}); "
                    f"start it with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, or {START}"
                ) from None
        self.held = []
        loaded = [str(model["id"]) for model in served if model.get("parent") is not None]
        self.listed = [name for name in loaded if name.startswith(PREFIX)]

    async def load(self, name: str, adapter: Path, timeout: float) -> None:
        """Bring the adapter in the folder `adapter` to the server, under this name. Away; UserError where it is refused."""
        if name in self.listed:  # its name holds the hash of its content
            return
        path = await self._put(name.removeprefix(PREFIX), adapter, timeout)
        try:
            await self.ask("POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": path}, timeout)
        except Refused as refused:
            if "already been loaded" not in str(refused):
                raise UserError(
                    f"the server at {self.url} does not load the adapter {name} from {path} (status {refused.status}: "
                    f"{refused}){_cure(str(refused))}"
                ) from None
        if name not in self.listed:
            self.listed.append(name)

    async def _put(self, digest: str, adapter: Path, timeout: float) -> str:
        """Have the adapter's files where the server reads them; returns the folder there."""
        if self.settings.adapters is not None:
            folder = Path(self.settings.adapters) / digest
            await asyncio.to_thread(copy_whole, adapter, folder)
            return str(folder)
        try:
            for file in FILES:
                content = (adapter / file).read_bytes()
                answer = await self.ask(
                    "PUT", f"/flywheel/adapters/{digest}/{file}", content=content, timeout=max(timeout, SHORT)
                )
            return str(answer["path"])  # pyrefly: ignore[unbound-name]  # FILES names some
        except (Refused, LookupError, TypeError) as problem:
            raise UserError(
                f"the server at {self.url} takes no adapters over HTTP ({problem}): start it by `make vllm-server`, or set "
                "policy.servers.adapters to a folder that this machine and the server see under the same path"
            ) from None

    async def unload(self, name: str) -> None:
        """Have the server forget an adapter, if it answers and has it."""
        self.held = [each for each in self.held if each != name]
        with contextlib.suppress(Away, Refused, UserError):
            await self.ask("POST", "/v1/unload_lora_adapter", {"lora_name": name})
        self.listed = [each for each in self.listed if each != name]

    async def generate(self, name: str, ids: Sequence[int], sampling: dict[str, Any], timeout: float) -> dict[str, Any]:
        """vLLM's answer to one request to an adapter. UserError where it comes from another."""
        body = {"model": name, "token_ids": list(ids), "cache_salt": name, "sampling_params": sampling}
        try:
            most = SMALL + TOKEN * int(sampling.get("max_tokens") or 0) * (2 + int(sampling.get("logprobs") or 0))
            answer = await self.ask("POST", "/inference/v1/generate", body, timeout, most=most)
        except Refused as refused:
            if refused.status == 403 or (refused.status == 404 and str(refused) == "Not Found"):
                raise UserError(
                    f"the server at {self.url} has no /inference/v1/generate ({refused}): start it with --enable-scale-out, "
                    f"or {START}"
                ) from None
            raise
        if not isinstance(answer, dict) or answer.get("model") != name:
            given = answer.get("model") if isinstance(answer, dict) else type(answer).__name__
            raise UserError(f"the server at {self.url} was asked for the adapter {name}, and answered as {given!r}")
        return answer

    async def probe(self, name: str, ids: Sequence[int]) -> list[dict[int, float]]:
        """Logprobs (nats) of the most probable tokens at each place of the probe's text (addons/fleet/probe.py)."""
        single = {"max_tokens": 1, "ignore_eos": True, "logprobs": MOST, "seed": 0}
        places = probe.places(ids)
        return [
            expected(answer)
            for answer in await asyncio.gather(*(self.generate(name, ids[:end], single, SHORT) for end in places))
        ]

    async def check_draws(self, name: str, ids: Sequence[int]) -> bool:
        """Whether a reply has the same bits alone and beside others. UserError where logprobs are not of the distribution
        that is sampled from, or draws do not follow from the request's seed."""
        wide = {
            "temperature": 2.0,
            "max_tokens": DRAWN,
            "ignore_eos": True,
            "logprobs": MOST,
            "detokenize": False,
            "seed": 1,
        }
        first = await self.generate(name, ids, wide, SHORT)
        alone = drawn(first)
        if expected(first) == expected(await self.generate(name, ids, wide | {"temperature": 1.0}, SHORT)):
            raise UserError(
                f"the server at {self.url} gives logprobs of temperature 1 where it samples at another: start it with "
                "--logprobs-mode processed_logprobs"
            )
        others = [self.generate(name, ids[: len(ids) // n], wide, SHORT) for n in (1, 2, 3, 4, 5)]
        beside = drawn((await asyncio.gather(*others))[0])
        if beside[0] != alone[0]:
            raise UserError(
                f"the server at {self.url} draws other tokens at the same seed: a CPU server must be started by "
                "`make vllm-server`"
            )
        return alone == beside


def expected(answer: dict[str, Any]) -> dict[int, float]:
    """Logprobs of the most probable tokens at an answer's first place."""
    top = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    return {int(token["token_id"]): float(token["logprob"]) for token in top}


def drawn(answer: dict[str, Any]) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """The ids and logprobs of an answer with one choice."""
    [choice] = answer["choices"]
    content = (choice.get("logprobs") or {}).get("content") or ()
    return tuple(choice["token_ids"]), tuple(float(token["logprob"]) for token in content)


def copy_whole(adapter: Path, folder: Path) -> None:
    """Copy an adapter's two files into a folder that is there as a whole or not at all."""
    if folder.exists():
        return
    temporary = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
    temporary.mkdir(parents=True)
    for file in FILES:
        shutil.copyfile(adapter / file, temporary / file)
    try:
        temporary.replace(folder)
    except OSError:  # another process was first
        shutil.rmtree(temporary, ignore_errors=True)
        if not folder.exists():
            raise


def _reason(answer: Any) -> str:
    """What an error's body says."""
    try:
        body = answer.json()
        error = body.get("error", body.get("detail", body))
        text = str(error.get("message", error) if isinstance(error, dict) else error)
    except (ValueError, AttributeError):
        text = str(answer.text)
    return " ".join(text.split())[:500]


def _cure(reason: str) -> str:
    if "rank" in reason:
        return ": start it with a --max-lora-rank of policy.lora.rank at least"
    if "not enabled" in reason:
        return ": start it with --enable-lora"
    if "No adapter found" in reason:
        return ": it must see policy.servers.adapters under the same path"
    return ""
