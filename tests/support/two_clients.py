"""Two clients with addresses of their own play a batch; one is killed, the other joins in the middle.

    python -m tests.support.two_clients             # as root: each client in a network namespace; otherwise on the loopback
    python -m tests.support.two_clients --episodes 24

The engine, the gateway and the agents (tests/support/agents/email_native.py) are real. Prints one line of JSON; exit code 1
where an episode is missing, is there twice, or has failed.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.support import storm

TASK = f"{storm.PLACE}.email_native"
NAMES, BRIDGE, NETWORK, PORT = ("fwone", "fwtwo"), "fwbridge", "10.77.0.", 8711


def ip(words: str) -> None:
    subprocess.run(["ip", *words.split()], check=True, capture_output=True)


@contextmanager
def namespaces(names: Sequence[str] = NAMES) -> Iterator[bool]:
    """A network namespace for each name, with an address of its own; False where this user may not make them, or another
    program has them."""
    with ExitStack() as undone:
        is_apart = True
        try:
            add(undone, f"link add {BRIDGE} type bridge", f"link del {BRIDGE}")
            ip(f"addr add {NETWORK}1/24 dev {BRIDGE}")
            ip(f"link set {BRIDGE} up")
            for number, name in enumerate(names):
                add(undone, f"netns add {name}", f"netns del {name}")
                add(undone, f"link add v{name} type veth peer name p{name}", f"link del v{name}")
                ip(f"link set p{name} netns {name}")
                ip(f"link set v{name} master {BRIDGE} up")
                ip(f"-n {name} addr add {NETWORK}{11 + number}/24 dev p{name}")
                ip(f"-n {name} link set p{name} up")
                ip(f"-n {name} link set lo up")
        except (OSError, subprocess.CalledProcessError):
            undone.close()
            is_apart = False
        yield is_apart


def add(undone: ExitStack, words: str, opposite: str) -> None:
    """`ip` with these words, whose opposite is done at the end; nothing is undone that this process has not done."""
    ip(words)
    undone.callback(_try, opposite)


def _try(words: str) -> None:
    with suppress(OSError, subprocess.CalledProcessError):
        ip(words)


def start(name: str, address: str, is_apart: bool) -> subprocess.Popen[bytes]:
    """A client that waits for the gateway."""
    words = [sys.executable, "-m", "addons.agents.client", "--server", f"http://{address}", "--name", name]
    inside = ["ip", "netns", "exec", name] if is_apart else []
    return subprocess.Popen([*inside, *words, "--capacity", "6", "--task", TASK], stderr=subprocess.DEVNULL)


def play(episodes: int, adapter: Path, is_apart: bool) -> dict[str, Any]:
    """The batch, and what became of it."""
    import environments
    from addons.agents.gateway import play as gateway_play
    from addons.agents.section import Agents
    from addons.agents.viewer_page import status
    from environments.email_search import EmailSearch
    from steps.core.params import Policy, Rollout
    from steps.sampling.job import Job
    from tests.support.agents._common import mailbox

    address = f"{NETWORK}1:{PORT}" if is_apart else f"127.0.0.1:{PORT}"
    os.environ |= {
        "FLYWHEEL_GATEWAY_LISTEN": address,
        "FLYWHEEL_GATEWAY_KEY": secrets.token_urlsafe(24),
        "JITTER": "0.3",
    }
    clients = [start(NAMES[0], address, is_apart)]
    seen: dict[str, Any] = {}

    def disturb() -> None:
        while True:  # the second joins when a sixth has ended, the first is killed when a third has
            time.sleep(0.05)
            shown, _ = status(Path())
            if shown is None:
                continue
            seen["clients"] = {entry["name"]: entry["ended"] for entry in shown["clients"]} | seen.get("clients", {})
            if len(clients) == 1 and shown["ended"] >= episodes // 6:
                clients.append(start(NAMES[1], address, is_apart))
            if len(shown["clients"]) == 2 and shown["ended"] >= episodes // 3:
                seen["lost"] = [entry["episode"] for entry in shown["under_way"] if entry["client"] == NAMES[0]]
                clients[0].send_signal(signal.SIGKILL)
                return

    threading.Thread(target=disturb, daemon=True).start()
    scenarios = EmailSearch.scenarios(mailbox(), "train", -(-episodes // 4), 1)
    attempts = [(scenario, attempt) for scenario in scenarios for attempt in range(4)][:episodes]
    settings = Agents(clients=0, concurrency=12, heartbeat_seconds=3)
    limits = Rollout.model_validate({"max_tokens": 64, "order": "free"})
    try:
        played = gateway_play.play(
            Job(Policy(), limits, adapter, environments.load(TASK), attempts, "001", 1, task=TASK, settings=settings)
        )
    finally:
        for client in clients:
            client.terminate()
    names = Counter(trajectory.id for trajectory in played)
    wanted = {f"001-{scenario.id}-{attempt}" for scenario, attempt in attempts}
    return {
        "episodes": len(played),
        "missing": len(wanted - names.keys()),
        "twice": sum(count > 1 for count in names.values()),
        "failed": sum(trajectory.error is not None for trajectory in played),
        "under way when the first was killed": len(seen.get("lost", ())),
        "in namespaces": is_apart,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.two_clients", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--episodes", type=int, default=60)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="clients-") as folder:
        adapter = storm.fresh_adapter(Path(folder))
        (Path(folder) / "tasks_data").symlink_to(storm.ROOT / "tasks_data")
        os.chdir(folder)
        os.environ["PYTHONPATH"] = os.fspath(storm.ROOT)
        with namespaces() as is_apart:
            row = play(options.episodes, adapter, is_apart)
    print(json.dumps(row))
    is_right = not (row["missing"] or row["twice"] or row["failed"]) and row["under way when the first was killed"]
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
