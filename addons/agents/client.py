"""A client of the gateway: it leases episodes, runs your agent's rollout function on them, and reports what came of it.

    FLYWHEEL_GATEWAY_KEY=… python -m addons.agents.client --server http://10.0.0.5:8700 --forever

Start as many as you like, on any machine that has this project's code, your agent's module and its packages; they may come
and go while episodes are played. The rollout stage starts those of `agents.clients` itself. The functions run in processes
of their own (addons/agents/processes.py), so that nothing they do keeps this one from saying that it is alive.

All requests have the gateway's key as `Authorization: Bearer`, and JSON bodies; `held` lists [episode, lease] of what the
client has under way. It makes one request for leases at a time.

    POST /clients                 {"client", "name", "capacity", "task": name or null, "held"}
                                  → {"client", "heartbeat_seconds", "task", "batch": any text that differs between batches}
                                  409: the gateway plays another task; 503: it plays none yet
    POST /clients/<id>/leases     {"free", "wait": seconds, "held"} → a list of {"episode", "lease", "scenario", "attempt",
                                  "seed", "api_key", "seconds", "suspect": it may have ended its process}; [] after the wait
    POST /clients/<id>/heartbeat  {"held"} → {"cancelled": [[episode, lease], …]}: those that are others' by now
    POST /clients/<id>/results    {"episode", "lease", "api_key"} with {"result": object or null, "error": text or null}, or
                                  with {"lost": true, "error": why the process died that ran it}, or
                                  with {"lost": true, "error": null}: it must begin again, and nothing is wrong with it
                                  409: it comes too late, or has come before, and is forgotten
    DELETE /clients/<id>

Status 404 asks the client to register again, as after a restart of the gateway or a long silence. A request that gets no
answer, or a status from 500 on, is made again until it does. Not here: the gateway's side (addons/agents/gateway/leases.py).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import secrets
import signal
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from addons.agents.processes import Processes
from environments.kit import http_client
from steps.core.errors import UserError, masked
from steps.core.terminal import command_parser, exit_code

KEY = "FLYWHEEL_GATEWAY_KEY"
ABSENCE = 60.0  # seconds without the gateway after which a client ends, but for --forever
WAIT = 20.0  # seconds that a request for leases may wait for some
TIMEOUT = 30.0  # seconds of any other request
GRACE = 15.0  # seconds after an episode's time limit in which its process must have said so
GOODBYE = 2.0  # seconds for the last request
LONGEST = 1000  # characters of an error


class Unknown(Exception):
    """The gateway does not know this client (any more)."""


class Late(Exception):
    """What was asked for is another's by now (status 409)."""


def _read(answer: http_client.Answer, server: str) -> Any:
    if answer.status == 404:
        raise Unknown
    if answer.status == 409:
        raise Late
    if answer.status == 401:
        raise UserError(f"the gateway at {server} refuses the key: set {KEY} to the one that it was started with")
    if answer.status >= 300:
        text = " ".join(answer.text.split())[:300]
        raise UserError(f"the gateway at {server} refuses a request (status {answer.status}): {text}")
    try:
        return answer.json()
    except ValueError:
        raise UserError(f"what is at {server} does not answer as a gateway does; see --server") from None


class Execution:
    """An episode that this client has leased."""

    def __init__(self, key: str, entry: dict[str, Any], processes: Processes) -> None:
        self.key, self.entry = key, entry  # the key is this client's own; names of episodes come again in other batches
        self.processes = processes  # in which it runs
        self.deadline = time.monotonic() + entry["seconds"] + GRACE
        self.is_playing = True  # False: what it came to is being reported


class Client:
    """One client; its episodes, and its tasks of asyncio."""

    def __init__(self, options: argparse.Namespace, key: str) -> None:
        self.options, self.name = options, options.name or f"{os.uname().nodename}-{os.getpid()}"
        self.http = http_client.Client(options.server, headers={"Authorization": f"Bearer {key}"}, connections=100)
        self.answered = time.monotonic()  # when the gateway was last there
        self.id = f"{os.getpid()}-{secrets.token_hex(6)}"
        self.heartbeat_seconds = 10.0
        self.batch: Any = None
        self.processes: Processes | None = None
        self.executions: dict[str, Execution] = {}
        self.freed, self.registering = asyncio.Event(), asyncio.Lock()
        self.registered = self.leased = 0  # how often
        self.tasks: set[asyncio.Task[Any]] = set()

    def say(self, text: str) -> None:
        print(masked(f"client {self.name}: {text}"), file=sys.stderr, flush=True)

    def held(self) -> list[tuple[str, int]]:
        return [(each.entry["episode"], each.entry["lease"]) for each in self.executions.values()]

    async def run(self) -> None:
        """Play until a signal ends it. UserError where the gateway refuses this client, or the task cannot be loaded."""
        stopped = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        work = [asyncio.create_task(part) for part in (self._play(), self._beat(), stopped.wait())]
        try:
            ended, _ = await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                task.result()
        finally:
            for task in (*work, *self.tasks):
                task.cancel()
            if self.processes is not None:
                await self.processes.stop()
            await self._leave()

    async def _leave(self) -> None:
        with contextlib.suppress(Exception):  # what it does not hear, the gateway notices
            await asyncio.wait_for(self._request("DELETE", f"/clients/{self.id}", timeout=GOODBYE), GOODBYE)
        await self.http.close()

    async def _request(self, method: str, path: str, body: Any = None, timeout: float = TIMEOUT) -> Any:
        """The JSON of an answer, which is asked for until it comes. Unknown for 404, Late for 409, UserError for another
        refusal, and after a long absence of the gateway."""
        pause = 0.1
        while True:
            try:
                answer = await self.http.ask(method, path, body=body, seconds=timeout)
                if answer.status < 500 or answer.status == 503:  # with which it is there, and has no batch
                    self.answered = time.monotonic()
                if answer.status < 500:
                    return _read(answer, self.options.server)
                reason = f"status {answer.status}"
            except http_client.NoAnswer as problem:
                reason = str(problem)
            absent = time.monotonic() - self.answered
            if absent > ABSENCE and not self.options.forever:
                server = self.options.server
                raise UserError(f"the gateway at {server} has not answered for {absent:.0f} seconds ({reason})")
            await asyncio.sleep(pause)
            pause = min(2 * pause, 2.0)

    async def ask(self, path: str, body: dict[str, Any], timeout: float = TIMEOUT, holding: bool = True) -> Any:
        """The answer to a request of this client, which registers (again) where it must. Late for 409."""
        while True:
            registered = self.registered
            try:
                if not registered:
                    raise Unknown
                listed = {"held": self.held()} if holding else {}
                return await self._request("POST", f"/clients/{self.id}/{path}", body | listed, timeout)
            except Unknown:
                await self._register(registered)

    async def _register(self, registered: int) -> None:
        """Register, unless somebody has since; wait while another task is played."""
        async with self.registering:
            if self.registered != registered:
                return
            words = {"client": self.id, "name": self.name, "capacity": self.options.capacity, "task": self.options.task}
            while True:
                try:
                    answer = await self._request("POST", "/clients", words | {"held": self.held()})
                    break
                except Late:
                    await asyncio.sleep(1.0)  # its time may come
                except Unknown:
                    raise UserError(f"what is at {self.options.server} is no gateway; see --server") from None
            self.id, self.heartbeat_seconds = answer["client"], float(answer["heartbeat_seconds"])
            task, batch = answer.get("task") or self.options.task, answer.get("batch")
            if task is None:
                raise UserError("--task is needed: the gateway does not say which agent it plays")
            if batch != self.batch or self.processes is None or self.processes.task != task:
                for key in list(self.executions):  # of another batch
                    self._drop(key)
                self.batch = batch
            if self.processes is None or self.processes.task != task:
                if self.processes is not None:
                    await self.processes.stop()
                self.processes = Processes(
                    task, self.options.processes, self._variables(), self._ended, self.say, self.options.python
                )
            self.registered += 1

    def _variables(self) -> dict[str, str]:
        """The environment of the processes: without the gateway's key, and without a proxy to this machine."""
        variables = {name: value for name, value in os.environ.items() if name != KEY}
        host = urlsplit(self.options.server).hostname or ""
        if host in http_client.LOOPBACK:
            for name in ("NO_PROXY", "no_proxy"):
                variables[name] = ",".join(filter(None, (variables.get(name), host)))
        return variables

    # --- Work

    async def _play(self) -> None:
        """Lease episodes as long as there is room, and start them."""
        await self._register(0)
        while True:
            self.freed.clear()
            free = self.options.capacity - len(self.executions)
            if free <= 0:
                await self.freed.wait()
                continue
            assert self.processes is not None
            await self.processes.start()  # an agent that cannot be loaded must lease nothing
            given = await self.ask("leases", {"free": free, "wait": WAIT}, TIMEOUT + WAIT)
            began = []
            for entry in given:
                self.leased += 1
                began.append(Execution(f"{entry['episode']}#{self.leased}", entry, self.processes))
                self.executions[began[-1].key] = began[-1]
            await asyncio.gather(*map(self._start, began))

    async def _start(self, execution: Execution) -> None:
        entry = execution.entry
        fields = {name: entry[name] for name in ("scenario", "attempt", "seed", "api_key", "seconds")}
        place = f"{self.options.server}/episodes/{entry['episode']}/v1"
        played = {"id": entry["episode"], "base_url": place, **fields}
        await execution.processes.play(execution.key, played, entry.get("suspect", False))

    def _ended(self, key: str, outcome: dict[str, Any]) -> None:
        """An episode has come to something: report it. One that was dropped is forgotten."""
        execution = self.executions.get(key)
        if execution is None or not execution.is_playing:
            return
        execution.is_playing = False
        body = {name: execution.entry[name] for name in ("episode", "lease", "api_key")}
        if "lost" in outcome:
            self.say(f"{body['episode']} is given back" + (f": {outcome['lost']}" if outcome["lost"] else ""))
            outcome = {"lost": True, "error": outcome["lost"]}
        task = asyncio.create_task(self._report(key, body | outcome))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _report(self, key: str, body: dict[str, Any]) -> None:
        try:
            await self.ask("results", body, holding=False)
        except Late:
            pass
        except (UserError, ValueError) as problem:  # refused, or no JSON: it would be given again without end
            self.say(f"{body['episode']} cannot be reported: {problem}")
            error = f"its result could not be reported: {problem}"[:LONGEST].encode("ascii", "replace").decode()
            with contextlib.suppress(Late, UserError):
                await self.ask("results", body | {"result": None, "error": error}, holding=False)
        finally:
            self._drop(key)

    def _drop(self, key: str) -> None:
        """Have done with an episode: it was reported, or is another's."""
        execution = self.executions.pop(key, None)
        if execution is not None and execution.is_playing:
            execution.processes.cancel(key)
        self.freed.set()

    async def _beat(self) -> None:
        """Say that this client is alive, and end what is no longer its own or took too long."""
        while True:
            answer = await self.ask("heartbeat", {})
            cancelled = {(episode, lease) for episode, lease in answer["cancelled"]}
            for execution in list(self.executions.values()):
                if (execution.entry["episode"], execution.entry["lease"]) in cancelled:
                    self._drop(execution.key)
            now = time.monotonic()
            for execution in [each for each in self.executions.values() if each.is_playing and now > each.deadline]:
                execution.processes.overdue(execution.key)
                seconds = f"{execution.entry['seconds']:g} seconds of agents.episode_seconds"
                error = f"TimeoutError: it took longer than the {seconds}, and its process had to be ended"
                self._ended(execution.key, {"result": None, "error": error})
            await asyncio.sleep(min(self.heartbeat_seconds / 4, 5.0))


def key_of(options: argparse.Namespace) -> str:
    """The gateway's key: from a file, or from the environment. UserError where there is none."""
    if options.key_file is not None:
        try:
            key = Path(options.key_file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as problem:
            raise UserError(f"--key-file {options.key_file} cannot be read: {problem}") from None
        if not key:
            raise UserError(f"--key-file {options.key_file} is empty; write the gateway's key into it")
        return key
    key = os.environ.get(KEY, "").strip()
    if not key:
        raise UserError(f"the gateway's key is needed: set {KEY}, or name a file with --key-file")
    return key


def main(words: list[str] | None = None) -> int:
    """The command; returns its exit code: 2 where the user must change something, 0 after a signal to end."""
    parser = command_parser("addons.agents.client", __doc__)
    parser.add_argument("--server", required=True, metavar="URL", help="the gateway, as in http://10.0.0.5:8700")
    parser.add_argument("--task", help="the agent's module; default: what the gateway plays")
    parser.add_argument("--processes", type=int, default=1, help="in which the agent runs (default: 1)")
    parser.add_argument("--capacity", type=int, default=16, help="most episodes at the same time (default: 16)")
    parser.add_argument("--python", metavar="PATH", help="the interpreter that runs the agent (default: this one)")
    parser.add_argument("--name", help="shown by the gateway (default: host and process)")
    parser.add_argument("--key-file", metavar="PATH", help=f"a file with the gateway's key (default: {KEY})")
    away = f"keep trying while the gateway is away (default: end after {ABSENCE:.0f} seconds)"
    parser.add_argument("--forever", action="store_true", help=away)
    options = parser.parse_args(words)

    def run() -> None:
        options.server = options.server.rstrip("/")
        parts = urlsplit(options.server)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UserError(f"--server {options.server}: it must be an address, as in http://10.0.0.5:8700")
        for name in ("processes", "capacity"):
            if getattr(options, name) < 1:
                raise UserError(f"--{name} must be at least 1, not {getattr(options, name)}")
        client = Client(options, key_of(options))
        if parts.scheme == "http" and parts.hostname not in http_client.LOOPBACK:
            client.say(f"keys and answers cross the network unencrypted, because --server is {parts.scheme}")
        asyncio.run(client.run())

    return exit_code(run)


if __name__ == "__main__":
    sys.exit(main())
