"""Serve: vLLM's OpenAI server with the champion; when the alias moves, the adapter is swapped without a restart.

    python -m addons.production.serve                   # http://127.0.0.1:8000/v1, model: the registry's name (`make serve`)
    python -m addons.production.serve --alias challenger --port 8001
    python -m addons.production.serve --host 10.0.0.5   # for other machines: over plain HTTP, so only in a network you trust

    python -m addons.production.serve --capture           # keeps conversations of people who agreed (`make serve CAPTURE=1`)

With --capture, requests with the header x-flywheel-consent: yes, or with the key in .flywheel/consent.key, are stored with
their answers in .flywheel/capture, masked, and POST /feedback is taken (addons/production/serving/capture.py,
docs/traces.md). Every path but /health asks for the key, which is made once, in .flywheel/serve.key. Nobody else can
load or remove adapters. /v1/models shows what is served: the adapter's folder is named by the hash of its content. What
cannot be served (a version that is none of ours, a full disk, an unreachable registry) is said once, and the server
keeps the version that it has.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import environments
from addons.production.section import Serve
from addons.production.serving import capture, counts, live, trial
from addons.production.serving.server import KEY, Server
from addons.production.traces import store
from flows.deployment.services import Services, plain
from flows.promotion import change
from flows.terminal.command import stop_once
from steps.core import dotenv, params
from steps.core.errors import UserError, masked
from steps.core.keys import key
from steps.core.ports import need
from steps.core.progress import say
from steps.core.terminal import command_parser, served
from steps.kit import vllm_guard as guard
from steps.kit.sockets import listen
from steps.policy.loading import load_chat
from steps.policy.machine import preloaded
from steps.policy.served import HOST, PORT, checked_host
from steps.registry.model import CANARY, RegisteredModel, fetched, policy_of, read_registry, tagged_adapter

SERVED = Path(".flywheel/served")  # adapters, by their hash
STATE = Path(".flywheel/served.json")  # what addons/production/serving/trial.py reads
CONSENT_KEY = Path(".flywheel/consent.key")  # of clients whose people agreed to capture
# The variables that vLLM may have beside every server's: those of its libraries, with the Hub's token, and of a proxy to it.
VLLMS = (
    "VLLM_ HF_ TORCH TRITON_ CUDA_ NVIDIA_ NCCL_ MKL_ KMP_ LD_ http_proxy https_proxy HTTP_PROXY HTTPS_PROXY".split()
)


class ServeParams(params.RegisterParams):
    serve: Serve


class Follower:
    """What is served, and how it follows the alias."""

    def __init__(self, root: Path, settings: ServeParams, alias: str, scores: live.Scores | None = None) -> None:
        self.root, self.settings, self.alias, self.scores = root, settings, alias, scores
        self.canary: str | None = None  # the version on trial that is loaded, and its share
        self.share = 0.0
        self.written: str | None = None  # the champion that the file of trial.py names
        self.reported: set[str] = set()  # why the alias could not be followed at the last look
        with contextlib.suppress(UserError):  # the first look says why
            self.finish()
        self.version, self.adapter = self.look_up()
        self.policy = policy_of(self.version, self.adapter, settings.policy)

    def look_up(self) -> tuple[Any, Path]:
        """(the version that the alias names now, the folder of its adapter)."""
        return self.fetch(read_registry(self.root, self.settings.model), self.alias)

    def fetch(self, model: RegisteredModel, label: str) -> tuple[Any, Path]:
        """(the version with this number or alias, the folder of its adapter)."""
        version = model.version(label)
        return version, fetched(model, version, self.root / SERVED / tagged_adapter(version))

    def follow(self, server: Server) -> None:
        """Look once where the alias is, and swap the adapter if it moved. Says once why that fails: serving goes on."""
        causes = set[str]()
        for work in (self.finish, lambda: self.look(server)):
            try:
                causes |= work()
            except Exception as problem:  # whatever is wrong with the registry, the disk or a version
                is_said = isinstance(problem, UserError)
                text = str(problem) if is_said else masked(f"{type(problem).__name__}: {problem}")
                cause = re.sub(r"0x[0-9a-f]+", "", text)  # of Python's objects, as connection errors quote them
                causes.add(cause)
                if cause not in self.reported:
                    say(f"version {self.version.version} is still served, for @{self.alias} cannot be followed: {text}")
        self.reported = causes

    def finish(self) -> set[str]:
        """Carry out what somebody decided who was killed meanwhile."""
        if self.alias == "champion":
            change.finish(self.root, self.settings.model)
        return set()

    def look(self, server: Server) -> set[str]:
        """Follow the alias, and decide on versions; what is not as it should be."""
        self.move(server, *self.look_up())
        if self.alias != "champion":
            return set()
        causes = self.try_canary(server)
        self.decide()
        return causes

    def move(self, server: Server, version: Any, adapter: Path) -> None:
        """Serve this version from now on. UserError where the server cannot."""
        if adapter != self.adapter:
            self.fits(version, adapter)
            self.write(None)
            try:
                server.swap(adapter)
            except UserError:
                self.write(str(self.version.version))  # it keeps what it has
                raise
            say(f"now serving version {version.version} in place of {self.version.version}")
        self.version, self.adapter = version, adapter
        if self.written != str(version.version):  # also where a full disk took it not at the last look
            self.write(str(version.version))

    def fits(self, version: Any, adapter: Path) -> None:
        """UserError where a version is not of the base model that is loaded."""
        policy = policy_of(version, adapter, self.settings.policy)
        ours, other = ((each.base_model, each.revision) for each in (self.policy, policy))
        if ours != other:
            raise UserError(
                f"{version.name} version {version.version} belongs to the base model {policy.base_model} (revision "
                f"{policy.revision}), and {self.policy.base_model} ({self.policy.revision}) is loaded: start again"
            )

    def write(self, champion: str | None) -> None:
        """Say in the file of trial.py what is served: this champion, None while it is swapped, and the canary."""
        name = f"{self.settings.model}-v{self.canary}" if self.canary else ""
        trial.Served(self.settings.model, champion, self.canary, name, self.share).write(self.root / STATE)
        self.written = champion

    def try_canary(self, server: Server) -> set[str]:
        """Serve the version on trial as well, or no longer; says once, and returns, why one with the alias is none.
        UserError where the server cannot."""
        model, causes = read_registry(self.root, self.settings.model), set[str]()
        wanted = live.on_trial(model) if self.settings.serve.canary else None
        if self.settings.serve.canary and wanted is None and (number := model.aliases.get(CANARY)):
            text = f"version {number} has the alias {CANARY} and is not on trial, for the ledger does not say that the gate"
            text += f" let it through: `.venv/bin/python -m flows.promote --version {number}` judges it"
            causes.add(text)
            if text not in self.reported:
                say(text)
        share = self.settings.serve.canary if wanted else 0.0
        if (wanted, share) == (self.canary, self.share):
            return causes
        if wanted is not None:
            version, adapter = self.fetch(model, wanted)
            self.fits(version, adapter)
            server.swap(adapter, f"{self.settings.model}-v{wanted}")
            say(f"version {wanted} is on trial: it gets {share:.0%} of the conversations")
            if self.scores is None:
                say(
                    "nothing is captured (CAPTURE=1), so nobody can say how the version on trial does: it stays on trial"
                )
        else:
            say(f"version {self.canary} is on trial no longer")
        self.canary, self.share = wanted, share
        self.write(str(self.version.version))
        return causes

    def read_settings(self) -> None:
        """Take the section `serve` of params.yaml as it is now; one that is wrong, or half-written, is left for later."""
        with contextlib.suppress(UserError):
            new = params.load(self.root / "params.yaml", ServeParams).serve
            self.settings = self.settings.model_copy(update={"serve": new})

    def decide(self) -> None:
        """Act on what people say of the versions."""
        settings = self.settings.serve
        if self.scores is None or not (settings.canary or settings.rollback is not None):
            return
        self.scores.update()
        model = read_registry(self.root, self.settings.model)
        for decided in (
            live.decide_canary(model, self.scores, settings),
            live.decide_champion(model, self.scores, settings, self.roll_back),
        ):
            if decided:
                say(decided)

    def roll_back(self, why: str) -> None:
        from flows.rollback import rollback

        rollback(self.root, self.settings.model, "previous", why)


class Captured(NamedTuple):
    """What is stored of conversations, and for how long."""

    rate: float = 1.0  # share of conversations
    days: float = 30.0
    megabytes: int = 1024
    consent: str = "given"  # given: each request says so; assumed: the operator does, and a request may say no

    def variables(self, root: Path) -> dict[str, str]:
        """The variables of the server's process. UserError for a value out of range."""
        need("masking", "--capture")
        for name, is_right, allowed in (
            ("rate", 0 < self.rate <= 1, "above 0, up to 1"),
            ("days", 0 < self.days <= 36500, "above 0, up to 36500"),
            ("mb", self.megabytes >= 1, "1 or more"),
        ):
            if not is_right:
                raise UserError(f"--capture-{name} must be {allowed}")
        values = (root.resolve() / store.FOLDER, self.rate, self.days, self.megabytes * 2**20, self.consent)
        names = (capture.FOLDER, capture.RATE, capture.DAYS, capture.BYTES, capture.CONSENT)
        own = {guard.CONSENT_KEY: key(root / CONSENT_KEY, user="")}
        return own | {name: str(value) for name, value in zip(names, values, strict=True)}


def serve(root: Path, alias: str, host: str, port: int, seconds: float, captured: Captured | None = None) -> None:
    """Start the server and follow the alias, looked up every `seconds`, until Ctrl-C."""
    settings = params.load("params.yaml", ServeParams)
    served_keys = key(root / KEY, user=""), secrets.token_urlsafe(24)
    stored = captured.variables(root) if captured else {}
    state = os.fspath((root / STATE).resolve())
    server = Server(checked_host(host), port, settings.model, *served_keys, stored, state)
    try:
        listen(host, port).close()
    except (OSError, OverflowError) as problem:
        raise UserError(f"port {port} on {host} cannot be used ({problem}): choose another with --port") from None
    scores = None
    if captured:
        scores = live.Scores(store.Store(root / store.FOLDER, captured.megabytes * 2**20, captured.days))
        scores.store.add({})  # what cannot be written there is said now
    follower = Follower(root, settings, alias, scores)
    follower.write(str(follower.version.version))
    chat = load_chat(follower.policy, environments.load(settings.task))
    variables = plain(os.environ, *VLLMS) | preloaded() | server.environment(follower.policy)
    with Services(root / ".flywheel", variables) as services:
        say(f"starting vLLM with {settings.model} version {follower.version.version} …")
        services.start("serve", *server.command(follower.policy, follower.adapter, chat))
        services.wait("serve", f"{server.page}/health")
        say(f"serving: {server.page}/v1, model {settings.model}, key in {KEY}; following @{alias}; Ctrl-C stops it")
        options = ("" if port == PORT else f" SERVE_PORT={port}") + ("" if host == HOST else f' ARGS="--host {host}"')
        say(f"to ask it, in another terminal: make ask{options}")
        if captured:
            say(
                f"capture: {captured.rate:.0%} of consented conversations, for {captured.days:g} days, in {store.FOLDER}"
            )
        spoken: dict[str, int] = {}
        while services.running["serve"].poll() is None:
            time.sleep(seconds)
            follower.read_settings()
            follower.follow(server)
            if scores:
                watch_capture(server, scores.store, spoken)
        raise UserError(f"vLLM ended: see {root / '.flywheel' / 'serve.log'}")


def watch_capture(server: Server, kept: store.Store, spoken: dict[str, int]) -> None:
    """Keep to the retention, and say what of it waits, and what is not stored: at first, and then each tenfold. `spoken`:
    what was said before, which is added to."""
    try:
        sentence = kept.expire()
    except OSError as problem:
        sentence = f"{kept.folder} cannot be used ({problem.strerror}), and nothing is stored"
    if sentence and sentence not in spoken:
        say(f"capture: {sentence}")
        spoken[sentence] = 1
    for why, count in server.missed().items():
        if not capture.is_usual(why) and counts.is_due(count, spoken.get(why, 0)):
            say(counts.sentence(why, count))
            spoken[why] = count


def main(words: list[str] | None = None) -> int:
    parser = command_parser("addons.production.serve", __doc__)
    parser.add_argument(
        "--host", default=HOST, help=f"the address to listen at, and that clients name (default: {HOST})"
    )
    parser.add_argument("--port", type=int, default=PORT, help=f"(default: {PORT})")
    parser.add_argument("--alias", default="champion", help="the alias to follow (default: champion)")
    parser.add_argument("--seconds", type=float, default=10.0, help="between two look-ups of the alias (default: 10)")
    parser.add_argument("--capture", action="store_true", help="store conversations of people who agreed")
    parser.add_argument("--capture-rate", type=float, metavar="SHARE", help="of conversations (default: 1)")
    parser.add_argument("--capture-days", type=float, metavar="DAYS", help="until a record is removed (default: 30)")
    parser.add_argument("--capture-mb", type=int, metavar="MIB", help="most on the disk (default: 1024)")
    parser.add_argument(
        "--capture-consent",
        choices=("given", "assumed"),
        help="assumed: everybody agreed but for requests that say no (default: given, by header or key)",
    )
    options = vars(parser.parse_args(words))
    limits = [options.pop(f"capture_{name}") for name in ("rate", "days", "mb", "consent")]
    if not options["capture"] and any(limit is not None for limit in limits):
        parser.error("--capture-… would have no effect without --capture")
    given = {name: limit for name, limit in zip(Captured._fields, limits, strict=True) if limit is not None}
    captured = Captured(**given) if options.pop("capture") else None

    stop_once()
    dotenv.load(Path.cwd())
    return served(lambda: serve(Path.cwd(), **options, captured=captured))


if __name__ == "__main__":
    sys.exit(main())
