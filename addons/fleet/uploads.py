"""Takes adapters over HTTP into the server of addons/fleet/vllm_server.py, which vLLM loads by `--middleware`.

    PUT /flywheel/adapters/<hash>/<file>     the bytes of adapter_config.json, then of adapter_model.safetensors
    → {"path": the adapter's folder on this machine}, once both are here and have the hash; before, {"path": null}

Nothing of what comes in is unpickled or run: a configuration in JSON and weights as safetensors, under names fixed here.
Files come into a folder beside, and an adapter has its own place once it is whole and has its hash: what comes later under
that name is compared with it and changes nothing. The newest 8 adapters are kept, and the newest 8 unfinished ones, for an
hour. Every request needs the key, and names this server as its host (steps/kit/vllm_guard.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import filecmp
import json
import os
import re
import secrets
import shutil
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.responses import JSONResponse

from steps.kit.vllm_guard import ADAPTERS, Guard
from steps.policy.adapter import adapter_hash

if TYPE_CHECKING:
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope

    from steps.kit.guard import Call

FOLDER = "FLYWHEEL_ADAPTERS"  # the variable that names the folder
LARGEST = {"adapter_config.json": 2**20, "adapter_model.safetensors": 16 * 2**30}  # file -> most bytes
PATH = re.compile(rf"/flywheel/adapters/([0-9a-f]{{16}})/({'|'.join(map(re.escape, LARGEST))})")
KEPT = 8  # adapters, and as many unfinished ones
PARTS = "unfinished"  # the folder of these, by their hash, in the folder of adapters
PATIENCE = 3600.0  # seconds after which an unfinished adapter goes
Reply = tuple[int, dict[str, object]]  # status and body


class Uploads(Guard):
    """The guard of a server whose clients, who have its key, bring and load adapters."""

    needs_swap_token = False

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(app)
        self.folder, self.lock = Path(os.environ[FOLDER]), threading.Lock()

    def refusal(self, scope: Scope) -> tuple[int, str] | None:
        refused = super().refusal(scope)
        if refused is not None and refused[0] == 401:
            return 401, "the key is missing or wrong: send this server's as 'Authorization: Bearer'"
        return refused

    def serves(self, method: str, path: str) -> bool:
        own = (method, path) in {*ADAPTERS, ("POST", "/inference/v1/generate")}
        return own or (method == "PUT" and PATH.fullmatch(path) is not None) or super().serves(method, path)

    async def answer(self, call: Call) -> Response | None:
        scope = call.scope
        match = PATH.fullmatch(scope["path"]) if scope["type"] == "http" and scope["method"] == "PUT" else None
        if match is None or self.refusal(scope) is not None:
            return await super().answer(call)
        status, answer = await self.take(match[1], match[2], call.receive)
        return JSONResponse(answer, status)

    async def take(self, name: str, file: str, receive: Receive) -> Reply:
        """Write a file of the adapter with this hash. The answer's status and body."""
        folder = self.folder / PARTS / name
        temporary = folder / f".{secrets.token_hex(8)}"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with temporary.open("xb") as target:
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return 400, {"error": "the file was cut off"}
                    target.write(message.get("body", b""))
                    if target.tell() > LARGEST[file]:
                        return 413, {"error": f"{file} is larger than {LARGEST[file]} bytes"}
                    if not message.get("more_body"):
                        break
            # In a thread: reading a large file again takes seconds.
            return await asyncio.to_thread(self.arrived, name, temporary, file)
        except OSError as problem:
            return 507, {"error": f"{file} could not be kept ({problem.strerror}): free space on the server's disk"}
        finally:
            temporary.unlink(missing_ok=True)
            for empty in (folder, folder.parent):
                with contextlib.suppress(OSError):  # it is gone, or holds other files
                    empty.rmdir()

    def arrived(self, name: str, arrival: Path, file: str) -> Reply:
        """Put a file that is here to the other one; with both, the adapter gets its place if it has its hash."""
        with self.lock:
            whole, folder = self.folder / name, self.folder / PARTS / name
            if whole.exists():
                if not filecmp.cmp(arrival, whole / file, shallow=False):
                    return 400, {"error": f"adapter {name} is here, and its {file} has another content"}
                os.utime(whole)
                return 200, {"path": str(whole.absolute())}
            arrival.replace(folder / file)
            self.forget_old(self.folder / PARTS, time.time() - PATIENCE)
            if not all((folder / each).exists() for each in LARGEST):
                return 200, {"path": None}
            if adapter_hash(folder) != name or not _is_config(folder / "adapter_config.json"):
                shutil.rmtree(folder)
                return 400, {"error": f"what came as adapter {name} has another content"}
            folder.rename(whole)
            self.forget_old(self.folder, 0.0)
            return 200, {"path": str(whole.absolute())}

    def forget_old(self, folder: Path, before: float) -> None:
        """Remove all but the newest, and those from before this moment."""
        ages = sorted(((each.stat().st_mtime, each) for each in folder.iterdir() if each.name != PARTS), reverse=True)
        for place, (age, each) in enumerate(ages):
            if place >= KEPT or age < before:
                shutil.rmtree(each, ignore_errors=True)


def _is_config(path: Path) -> bool:
    try:
        return isinstance(json.loads(path.read_bytes()), dict)
    except (ValueError, RecursionError):
        return False
