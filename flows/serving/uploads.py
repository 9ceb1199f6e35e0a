"""Takes adapters over HTTP into the server of flows/vllm_server.py, which vLLM loads by `--middleware`.

    PUT /flywheel/adapters/<hash>/<file>     the bytes of adapter_config.json, then of adapter_model.safetensors
    → {"path": the adapter's folder on this machine}, once both are here and have the hash; before, {"path": null}

Nothing of what comes in is unpickled or run: a configuration in JSON and weights as safetensors, under names fixed here. The
newest 8 adapters are kept. Every request needs the key, and names this server as its host (flows/serving/guard.py).
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.responses import JSONResponse

from flows.serving.guard import Guard
from steps.policy.adapter import adapter_hash

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

FOLDER = "FLYWHEEL_ADAPTERS"  # the variable that names the folder
FILES = ("adapter_config.json", "adapter_model.safetensors")
PATH = re.compile(rf"/flywheel/adapters/([0-9a-f]{{16}})/({'|'.join(map(re.escape, FILES))})")
KEPT = 8
LARGEST = 16 * 2**30  # bytes of a file


class Uploads(Guard):
    """The guard of a server whose clients, who have its key, bring and load adapters."""

    needs_swap_token = False

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(app)
        self.folder = Path(os.environ[FOLDER])

    def refusal(self, scope: Scope) -> tuple[int, str] | None:
        refused = super().refusal(scope)
        if refused is not None and refused[0] == 401:
            return 401, "the key is missing or wrong: send this server's as 'Authorization: Bearer'"
        return refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match = PATH.fullmatch(scope["path"]) if scope["type"] == "http" and scope["method"] == "PUT" else None
        if match is None or self.refusal(scope) is not None:
            return await super().__call__(scope, receive, send)
        status, answer = await self.take(match[1], match[2], receive)
        return await JSONResponse(answer, status)(scope, receive, send)

    async def take(self, name: str, file: str, receive: Receive) -> tuple[int, dict[str, object]]:
        """Write a file of the adapter with this hash. The answer's status and body."""
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = folder / f".{secrets.token_hex(8)}"
        try:
            with temporary.open("xb") as target:
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return 400, {"error": "the file was cut off"}
                    target.write(message.get("body", b""))
                    if target.tell() > LARGEST:
                        return 413, {"error": f"{file} is larger than {LARGEST} bytes"}
                    if not message.get("more_body"):
                        break
            temporary.replace(folder / file)
        finally:
            temporary.unlink(missing_ok=True)
        if not all((folder / each).exists() for each in FILES):
            return 200, {"path": None}
        if adapter_hash(folder) != name or not self._is_config(folder):
            shutil.rmtree(folder, ignore_errors=True)
            return 400, {"error": f"what came as adapter {name} has another content"}
        os.utime(folder)
        self._forget_old()
        return 200, {"path": str(folder.absolute())}

    @staticmethod
    def _is_config(folder: Path) -> bool:
        try:
            return isinstance(json.loads((folder / FILES[0]).read_bytes()), dict)
        except ValueError:
            return False

    def _forget_old(self) -> None:
        newest = sorted(self.folder.iterdir(), key=lambda folder: folder.stat().st_mtime, reverse=True)
        for folder in newest[KEPT:]:
            shutil.rmtree(folder, ignore_errors=True)
