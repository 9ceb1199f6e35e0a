"""The guard of the served model, which vLLM's server loads by `--middleware`: who may call what.

vLLM's own check of the key covers only some paths (`/v1` and a few more), while `/invocations`, `/adapters`, `/metrics` and
others answer anybody. Here every request needs the key, and must name this server as its host, against DNS rebinding: a
foreign page whose name points at 127.0.0.1 still sends that name. Pages of other sites are not answered. Only `/health`
needs none of it. Of vLLM's paths only those in `ROUTES` are open, because others, such as `/scale_elastic_ep`, stop or
change the server, and each version brings new ones. Adapters are loaded and removed by addons/production/serve.py
alone, which sends a second secret, so that what has the champion's name is the champion.

With capture (addons/production/serving/capture.py) there is a second key, for clients whose people agreed that what
they say is kept. A request with it goes on with the first one and a header that says so. The id of an answer, under
which feedback is given, is drawn here: vLLM would take the client's own `x-request-id`, and two answers could have the same.
"""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.responses import JSONResponse

from steps.kit.guard import Call, Middleware, bearer, caller_fault, same

if TYPE_CHECKING:
    from starlette.responses import Response
    from starlette.types import ASGIApp, Scope

# The variables of vLLM's process that set the guard up.
KEY = "VLLM_API_KEY"  # what clients send; vLLM checks it too
SWAP_TOKEN = "FLYWHEEL_SWAP_TOKEN"  # what addons/production/serve.py sends beside the key, in SWAP_HEADER
CONSENT_KEY = "FLYWHEEL_CONSENT_KEY"  # what clients send whose people agreed to capture; may be missing
CONSENT_HEADER = "x-flywheel-consent"
HOST = "FLYWHEEL_SERVE_HOST"  # the address at which the server listens
SWAP_HEADER = "x-flywheel-swap"
# What clients may call: to read, and to have an answer. A path in another spelling is none of these.
READ = "/health /ping /version /load /metrics /openapi.json /v1/models /capture"
ASK = """/v1/chat/completions /v1/chat/completions/render /v1/completions /v1/responses /v1/messages
    /v1/messages/count_tokens /tokenize /detokenize /invocations /ping /feedback"""
ROUTES = frozenset([("GET", path) for path in READ.split()] + [("POST", path) for path in ASK.split()])
ADAPTERS = frozenset({("POST", "/v1/load_lora_adapter"), ("POST", "/v1/unload_lora_adapter")})


class Guard(Middleware):
    """ASGI middleware that refuses what the caller may not do; everything else reaches the application."""

    needs_swap_token = True  # to load an adapter

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(app)
        self.key, self.swap_token = os.environ.get(KEY, "").strip(), os.environ.get(SWAP_TOKEN, "").strip()
        if not (self.key and self.swap_token):
            raise RuntimeError(f"{KEY} or {SWAP_TOKEN} is empty: without them the server would answer anybody")
        self.consent_key = os.environ.get(CONSENT_KEY, "").strip()
        self.hosts = {"127.0.0.1", "localhost", os.environ.get(HOST, "").lower()} - {""}

    async def answer(self, call: Call) -> Response | None:
        scope = call.scope
        is_health = scope["type"] == "http" and scope["path"] == "/health" and scope["method"] in ("GET", "HEAD")
        if is_health or (refusal := self.refusal(scope)) is None:
            call.scope = self.passed(scope)
            return None
        status, text = refusal
        return JSONResponse({"error": {"message": text, "type": "refused", "code": status}}, status)

    def refusal(self, scope: Scope) -> tuple[int, str] | None:
        """(status, reason) where a request is refused, else None."""
        headers = Headers(scope=scope)
        if (status := caller_fault(headers, self.hosts)) == 421:
            return status, f"this server answers only to the hosts {', '.join(sorted(self.hosts))}"
        if status:
            return status, "pages of other sites are not answered: let your page's own server ask"
        keys = [self.key, *([self.consent_key] if self.consent_key else [])]
        if not sum(same(bearer(headers), key) for key in keys):
            return 401, "the key is missing or wrong: send 'Authorization: Bearer' with what .flywheel/serve.key holds"
        method, path = scope.get("method", "websocket").replace("HEAD", "GET"), scope["path"]
        if self.needs_swap_token and "adapter" in path.lower():
            if (method, path) in ADAPTERS and same(headers.get(SWAP_HEADER, ""), self.swap_token):
                return None
            return 403, "adapters come from the registry alone: move the alias that this server follows"
        if not self.serves(method, path):
            return 403, "this path is not served here: steps/kit/vllm_guard.py lists those that are"
        return None

    def serves(self, method: str, path: str) -> bool:
        """Whether whoever has the key may call this."""
        return (method, path) in ROUTES

    def passed(self, scope: Scope) -> Scope:
        """The request as the application gets it: with an id of ours; one with the key for consent has the other key, and
        the header, unless it says something else."""
        headers = Headers(scope=scope)
        has_consent = self.consent_key and same(bearer(headers), self.consent_key)
        replaced = (b"x-request-id", b"authorization") if has_consent else (b"x-request-id",)
        kept = [(name, value) for name, value in scope["headers"] if name not in replaced]
        kept.append((b"x-request-id", secrets.token_hex(16).encode()))
        if has_consent:
            kept.append((b"authorization", f"Bearer {self.key}".encode()))
            kept += [(CONSENT_HEADER.encode(), b"yes")] if CONSENT_HEADER not in headers else []
        return {**scope, "headers": kept}
