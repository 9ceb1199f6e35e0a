"""Plays a batch of episodes of your own agents: the engine here, the gateway and the agents in processes beside it.

    play(job) -> trajectories

The gateway's process and the clients' stay for the next batch of this process. A gateway that ends is started again, at the
same address and with the same journal; so is a client. The journal lies in .flywheel/gateway/, named by all that decides the
batch: the same command after a kill goes on with it. With `rollout.order: free` it is kept, as the record that the same
batch is played from again; otherwise it is deleted when the trajectories are made.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import os
import queue
import secrets
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from addons.agents.gateway.__main__ import KEY, LISTEN
from addons.agents.gateway.causes import sentence
from addons.agents.gateway.journal import Journal
from addons.agents.gateway.plan import Plan
from addons.agents.section import Agents
from steps.core.cores import allowed_cores, use_allowed_cores
from steps.core.errors import UserError
from steps.core.files import write_text
from steps.core.pictures import Shown
from steps.core.progress import progress, say
from steps.core.section import at
from steps.kit.process import end, end_with_parent, start
from steps.kit.sockets import pair
from steps.policy.loading import check_sight, load_chat

if TYPE_CHECKING:
    import socket
    import subprocess

    from steps.core.records import Trajectory
    from steps.sampling.job import Job
    from steps.sampling.turns import CallSampler

JOURNALS = Path(".flywheel/gateway")
ADDRESS = JOURNALS / "address.json"  # url and key, for addons/agents/viewer_page.py
LOG = JOURNALS / "log"  # of the gateway and the clients
STARTS = 100  # of the gateway in one batch, before the stage gives up
START_SECONDS = 120.0
TRIES = 10  # to start the gateway's process where it is killed while it starts
Inbox = queue.SimpleQueue[dict[str, Any] | None]

# The gateway of this process; global for the same reason as the engine (steps/sampling/engine.py).
_gateways: list[Gateway] = []


def receive(connection: socket.socket, inbox: Inbox) -> None:
    """A thread's work: put what the gateway says into the inbox, until it has gone."""
    use_allowed_cores()
    with contextlib.suppress(OSError, ValueError), connection.makefile("rb") as lines:  # it may be killed in mid-line
        for line in lines:
            inbox.put(json.loads(line))
    inbox.put(None)


class Gateway:
    """The gateway's process and those of the clients on this machine.

    It says {"started": true}, {"listening": [host, port]}, {"sample": […]}, {"progress": [done, total, note]} and
    {"finished": true, …}, in JSON, one per line: they wait in `inbox`, and None where the gateway has gone. It is sent
    {"batch": …} to begin, then {"sampled": […]} and {"failed": […]}.
    """

    def __init__(self) -> None:
        self.own_key = os.environ.get(KEY)
        self.key = self.own_key or secrets.token_urlsafe(24)
        self.address = os.environ.get(LISTEN) or "127.0.0.1:0"
        self.process: subprocess.Popen[bytes] | None = None
        self.connection: socket.socket | None = None
        self.inbox: Inbox = queue.SimpleQueue()
        self.clients: list[subprocess.Popen[bytes]] = []
        self.played: tuple[str, int, str | None] = "", 0, None  # task, capacity and interpreter of the clients

    def begin(self, plan: Plan) -> None:
        """Give the gateway a batch; start it where it does not run. UserError where it cannot start."""
        for _ in range(TRIES):
            if (self.process is None or self.process.poll() is not None) and not self._start():
                continue
            self.send({"batch": plan._asdict()})
            try:
                message = self.inbox.get(timeout=START_SECONDS)
            except queue.Empty:
                message = None
            if message is not None and "listening" in message:
                host, port = message["listening"]
                self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
                shown = json.dumps({"url": f"http://{self.address}", "key": self.key})
                write_text(ADDRESS, shown, lasting=False, private=True)
                return
            self.stop_gateway()
        raise UserError(f"the gateway ended {TRIES} times before it began: {tail() or f'see {LOG}'}")

    def _start(self) -> bool:
        """Whether the gateway's process has started; False where it was killed. UserError where it ended by itself."""
        LOG.parent.mkdir(parents=True, exist_ok=True)
        variables = {KEY: self.key, LISTEN: self.address, "FLYWHEEL_GATEWAY_OWN_KEY": "1" if self.own_key else "0"}
        self.connection, theirs = pair()
        with theirs:
            words = ["addons.agents.gateway", "--socket", str(theirs.fileno())]
            self.process = child(words, variables, pass_fds=[theirs.fileno()])
        self.inbox = queue.SimpleQueue()
        threading.Thread(target=receive, args=(self.connection, self.inbox), daemon=True).start()
        try:
            is_there = self.inbox.get(timeout=START_SECONDS) is not None
        except queue.Empty:
            raise UserError(f"the gateway did not start within {START_SECONDS:.0f} seconds; see {LOG}") from None
        if not is_there and (code := self.process.wait()) >= 0:
            raise UserError(tail() or f"the gateway ended before it began (exit code {code}); see {LOG}")
        return is_there

    def send(self, message: dict[str, Any]) -> None:
        """A message that cannot be delivered is dropped: the inbox says that the gateway has gone."""
        with contextlib.suppress(OSError):
            if self.connection is not None:
                self.connection.sendall(json.dumps(message).encode() + b"\n")

    def keep_clients(self, task: str, agents: Agents) -> None:
        """Start the clients that are missing; those of another task or capacity end."""
        capacity = -(-agents.concurrency // max(agents.clients, 1))
        if (task, capacity, agents.python) != self.played:
            self.stop_clients()
            self.played = task, capacity, agents.python
        if any(client.poll() == 2 for client in self.clients):  # a sentence for the user
            self.clients = []
            raise UserError(f"a client of the gateway ended: {tail() or f'see {LOG}'}")
        self.clients = [client for client in self.clients if client.poll() is None]
        while len(self.clients) < agents.clients:
            words = ["addons.agents.client", "--server", f"http://{self.address}", "--task", task]
            words += ["--python", agents.python] if agents.python else []
            self.clients.append(child([*words, "--capacity", str(capacity)], {KEY: self.key}))

    def stop_clients(self) -> None:
        for client in self.clients:
            end(client)
        self.clients = []

    def stop_gateway(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None
        if self.process is not None:
            end(self.process)

    def stop(self) -> None:
        self.stop_clients()
        self.stop_gateway()
        ADDRESS.unlink(missing_ok=True)


def play(job: Job) -> list[Trajectory]:
    """The trajectories of all attempts of a job by an agent with the policy as its model, in their order. Each shard is a
    batch of the gateway's, one after another."""
    if job.opponent is not None:
        raise UserError(f"rollout.opponent: {job.task} is an agent of your own, and no game; take it out")
    return [trajectory for shard in job.shards for trajectory in play_shard(shard)]


def play_shard(job: Job) -> list[Trajectory]:
    """The trajectories of one shard's attempts."""
    from steps.sampling.play import engines

    policy, limits, agents, attempts = job.policy, job.limits, Agents.of(job.settings), job.attempts
    chat = load_chat(policy, job.env)
    check_sight(policy, (scenario for scenario, _ in attempts), chat.vision is not None)
    allowed_cores()  # before the engine binds this process to one of them
    names = [f"{job.prefix}-{scenario.id}-{attempt}" for scenario, attempt in attempts]
    plan = Plan(
        journal="",
        task=job.task,
        policy=policy.model_dump(mode="json"),
        agents=agents.model_dump(mode="json"),
        adapter=job.adapter_hash,
        order=limits.order,
        grammar=at(limits, "grammar") or "exact",
        seed=job.seed,
        temperature=limits.temperature,
        max_tokens=job.max_tokens,
        max_turns=limits.max_turns,
        episodes=[
            {"episode": name, "scenario": scenario.model_dump(mode="json"), "attempt": attempt}
            for name, (scenario, attempt) in zip(names, attempts, strict=True)
        ],
    )
    identity = hashlib.sha256(json.dumps(plan._asdict(), sort_keys=True).encode()).hexdigest()[:24]
    folder = JOURNALS / identity
    plan = plan._replace(journal=os.fspath((folder / "journal.sqlite").absolute()))
    if folder.exists():
        is_whole = (folder / "whole").exists()
        again = "plays the batch again from it" if is_whole else "goes on with it"
        say(f"the journal of this batch is in {folder}: {again}")
        if is_whole:  # the agents run, and get the journal's answers to what they asked before
            with contextlib.closing(Journal(Path(plan.journal))) as journal:
                journal.reopen()
    else:
        forget_old(folder.parent)
    sample(engines(policy).turns(job, chat.end), plan, agents)
    played = trajectories(Path(plan.journal), names)
    if forks := sentence(Counter(turn.fork for trajectory in played for turn in trajectory.turns)):
        say(forks)
    if limits.order == "free":
        (folder / "whole").touch()
        say(f"the journal in {folder} is the record of this batch: the same batch is played from it again")
    else:
        shutil.rmtree(folder)
    return played


def trajectories(path: Path, names: Sequence[str]) -> list[Trajectory]:
    """What the journal has of these episodes, in their order."""
    from steps.core.records import Trajectory

    with contextlib.closing(Journal(path)) as journal:
        played = {name: Trajectory.model_validate(written) for name, written in journal.trajectories()}
    return [played[name] for name in names]


def sample(sampler: CallSampler, plan: Plan, agents: Agents) -> None:
    """Sample what the gateway asks for, until all episodes have ended."""
    from steps.sampling.turns import Limits

    if not _gateways:
        _gateways.append(Gateway())
        atexit.register(_gateways[0].stop)
    [gateway] = _gateways
    gateway.begin(plan)
    starts, checked = 1, 0.0
    submit: Any = sampler.submit  # with pictures where the engine is in this process (`check_sight`)
    while True:
        if time.monotonic() > checked + 0.5:
            checked = time.monotonic()
            gateway.keep_clients(plan.task, agents)
        for message in messages(gateway, 0.0 if sampler.pending else 0.25):
            if message is None:  # the gateway has gone
                while sampler.pending:  # let the engine finish what nobody waits for any more
                    sampler.step()
                starts += 1
                if starts > STARTS:
                    raise UserError(f"the gateway ended {STARTS} times: {tail()}")
                say(f"the gateway ended; starting it again ({tail()[:200]})")
                gateway.stop_gateway()
                gateway.begin(plan)
            elif "finished" in message:
                say_counts(message)
                return
            elif "progress" in message:
                progress(*message["progress"])
            failed = []
            for request in (message or {}).get("sample", ()):
                fields = request["limits"] | {"stop": tuple(request["limits"].get("stop", ()))}
                shown = [Shown(*each) for each in request.get("pictures", ())]
                more: dict[str, Any] = {"pictures": shown} if shown else {}
                try:
                    submit(request["key"], request["ids"], request["seed"], Limits(**fields), **more)
                except ValueError as problem:  # such as a schema that vLLM cannot compile
                    failed.append({"key": request["key"], "reason": f"vLLM refuses it: {str(problem)[:500]}"})
            if failed:
                gateway.send({"failed": failed})
        if sampler.pending and (finished := sampler.step()):
            gateway.send({"sampled": [sampled._asdict() for sampled in finished]})


def say_counts(counts: dict[str, Any]) -> None:
    """Say what the agents may not expect of the gateway."""
    if ignored := counts["ignored"]:
        listed = ", ".join(f"{name} ({number} requests)" for name, number in sorted(ignored.items()))
        say(f"the run decides these, whatever the agents ask for: {listed}")
    if counts["repeated"]:
        say(f"{counts['repeated']} requests were asked again, and got the same answers")


def messages(gateway: Gateway, seconds: float) -> Iterator[dict[str, Any] | None]:
    """What the gateway has said; waits up to `seconds` for the first."""
    with contextlib.suppress(queue.Empty):
        while True:
            yield gateway.inbox.get(timeout=seconds)
            seconds = 0.0


def forget_old(folder: Path) -> None:
    """Delete journals that were not used for 30 days."""
    for path in folder.glob("*/journal.sqlite"):
        if time.time() - path.stat().st_mtime > 30 * 86400:
            shutil.rmtree(path.parent)


def child(words: list[str], variables: dict[str, str], **options: Any) -> subprocess.Popen[bytes]:
    """A process of this project's that ends with this one, whatever ends it; it writes to the log."""
    command, both = [sys.executable, "-m", *words], os.environ | variables
    return start(command, log=LOG, env=both, preexec_fn=_begin_child, **options)


def _begin_child() -> None:
    end_with_parent(signal.SIGTERM)
    use_allowed_cores()  # the engine has bound the thread that starts this process to one


def tail() -> str:
    """The last line of the log."""
    lines = LOG.read_text(errors="replace").strip().splitlines() if LOG.exists() else []
    return lines[-1][:500] if lines else ""
