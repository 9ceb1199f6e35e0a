"""The gateway's process, which the stage starts: `python -m addons.agents.gateway --socket NUMBER`.

It listens on the loopback interface at a free port, or where FLYWHEEL_GATEWAY_LISTEN (host:port) says, which needs a key in
FLYWHEEL_GATEWAY_KEY. It ends with the stage.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import TYPE_CHECKING, Any

from environments.kit.http_client import LOOPBACK
from steps.core.errors import UserError, explain
from steps.core.imports import UNUSED, hidden
from steps.core.terminal import command_parser
from steps.kit.sockets import handed, listen

if TYPE_CHECKING:
    import socket

    from addons.agents.gateway.server import Server

LONGEST = 2**28  # bytes of a line from the stage
LISTEN, KEY = "FLYWHEEL_GATEWAY_LISTEN", "FLYWHEEL_GATEWAY_KEY"


def listening(address: str, has_own_key: bool) -> socket.socket:
    """The socket to listen at. UserError for another than loopback without a key of the user's, and where it is taken."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    if host not in LOOPBACK and not has_own_key:
        raise UserError(
            f"{LISTEN}={address}: others could reach the gateway there, so {KEY} must be set, to a long random text "
            "that the clients are given, too"
        )
    if not port.isdigit() or int(port) > 65535:
        raise UserError(f"{LISTEN}={address}: it must be host:port, as in 127.0.0.1:8700")
    try:
        return listen(host, int(port), backlog=1024)
    except OSError as problem:
        raise UserError(
            f"{LISTEN}={address}: the gateway cannot listen there ({problem.strerror or problem})"
        ) from None


def alone() -> str:
    """Why no second gateway can be at work beside one, as where rollouts run ahead; "" where it can."""
    has_port = os.environ.get(LISTEN, ":0").rpartition(":")[2] != "0"
    return f"{LISTEN} names one port, and two gateways at once would need two" if has_port else ""


def names() -> list[str]:
    """The names by which clients may call this server: the one where it listens, the machine's own, and the user's list."""
    from addons.agents.gateway.server import HOSTS

    given = os.environ.get(LISTEN, "").rpartition(":")[0]
    return [
        each.strip() for each in (given, os.uname().nodename, *os.environ.get(HOSTS, "").split(",")) if each.strip()
    ]


async def serve(stage: socket.socket, listener: socket.socket, key: str) -> None:
    """Serve until the stage hangs up. Requests wait until there is a batch: without it a call that is asked again after a
    kill would get status 401, which no client asks again."""
    import uvicorn

    from addons.agents.gateway.batch import Batch
    from addons.agents.gateway.plan import Chats, Plan
    from addons.agents.gateway.server import LimitedProtocol, Server
    from steps.core.params import Policy

    reader, writer = await asyncio.open_unix_connection(sock=stage, limit=LONGEST)
    server, chats = Server(key, names()), dict[str, Chats]()

    def send(message: dict[str, Any]) -> None:
        writer.write(json.dumps(message).encode() + b"\n")

    options = uvicorn.Config(
        server.app, http=LimitedProtocol, log_config=None, access_log=False, lifespan="off", timeout_keep_alive=75
    )

    send({"started": True})
    tasks = [asyncio.create_task(sweep(server))]
    while line := await reader.readline():
        message = json.loads(line)
        if "batch" in message:
            plan = Plan(**message["batch"])
            name = json.dumps(plan.policy, sort_keys=True)
            if name not in chats:
                chats[name] = Chats(Policy(**plan.policy))
            if server.batch is not None:
                server.batch.journal.close()
            ended, server.batch = server.batch, Batch(plan, chats[name], send)
            if ended is not None:
                ended.wake()  # the clients that wait for its episodes
            send({"listening": listener.getsockname()[:2]})
            server.batch.tell_end()
            if ended is None:
                tasks.append(asyncio.create_task(uvicorn.Server(options).serve([listener])))
        elif server.batch is not None:
            server.batch.failed(message.get("failed", ()))
            server.batch.sampled(message.get("sampled", ()))
    for task in tasks:
        task.cancel()


async def sweep(server: Server) -> None:
    """Look once a second for clients that are silent."""
    while True:
        await asyncio.sleep(1)
        if server.batch is not None:
            server.batch.sweep()


def main() -> int:
    parser = command_parser("addons.agents.gateway", __doc__)
    parser.add_argument("--socket", type=int, required=True, help="the stage's connection, which this process has")
    options = parser.parse_args()
    try:
        has_own_key = os.environ.get("FLYWHEEL_GATEWAY_OWN_KEY") == "1"
        listener = listening(os.environ.get(LISTEN) or "127.0.0.1:0", has_own_key)
        import uvloop

        # Tokenizers need no torch, which takes six seconds of a core; the stage has converted a GGUF file, which does.
        os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"
        with hidden("torch", *UNUSED):
            from transformers import AutoImageProcessor, AutoTokenizer  # noqa: F401
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(handed(options.socket), listener, os.environ[KEY]))
    except Exception as problem:
        text, code = explain(problem)
        print(text, file=sys.stderr)
        return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
