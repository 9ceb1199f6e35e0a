"""A team's services as real processes: PostgreSQL with passwords, S3 (moto's server), MLflow's and Prefect's servers.

tests/support/team.py runs them on the loopback, and tests/support/namespaces.py each in a network namespace of its own.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg

from tests.conftest import ROOT, environment, s3_variables

PORTS = {"postgres": 5442, "s3": 9010, "mlflow": 5010, "prefect": 4210}
PASSWORDS = {"postgres": "owner-of-all", "mlflow": "pw-mlflow", "prefect": "pw-prefect", "ledger": "pw-ledger"}
PASSWORDS |= {"alice": "pw-alice", "bob": "pw-bob"}
BUCKET = "flywheel"


def documented(words: str) -> str:
    """The one block of code in docs/team.md that holds these words, so that what is documented is what runs."""
    blocks = re.findall(r"^```[a-z]+\n(.*?)^```", (ROOT / "docs/team.md").read_text(), re.MULTILINE | re.DOTALL)
    [block] = [block for block in blocks if words in block]
    return str(block)


class Team:
    """The services, started one by one; `with` ends all of them. `where`: service -> (address, words before its command)."""

    def __init__(self, folder: Path, where: Mapping[str, tuple[str, list[str]]] | None = None) -> None:
        self.folder, self.where = folder, where or dict.fromkeys(PORTS, ("127.0.0.1", []))
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.machine = folder / "server"  # the checkout of the machine that runs the two servers
        self.data = folder / "pg"

    def __enter__(self) -> Team:
        return self

    def __exit__(self, *_: object) -> None:
        for name in ("prefect", "mlflow", "s3", "postgres"):
            if process := self.processes.get(name):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGINT)  # PostgreSQL's fast shutdown
                try:
                    process.wait(15)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()

    def host(self, name: str) -> str:
        return f"{self.where[name][0]}:{PORTS[name]}"

    def database(self, name: str, user: str) -> str:
        return f"postgresql://{user}:{PASSWORDS[user]}@{self.host('postgres')}/{name}"

    def start(self, name: str, words: list[str], **variables: str) -> None:
        """A process in a group of its own, in the place of the service."""
        inside = self.where[name][1]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [*inside, *words],
                cwd=self.machine if self.machine.exists() else self.folder,
                env=environment(self.folder, **variables),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def start_postgres(self) -> None:
        """A server with passwords, and docs/team.md's databases and users."""
        from pgserver.utils import ensure_prefix_permissions, ensure_user_exists

        lower: list[str] = []
        self.data.mkdir(mode=0o700)
        if os.geteuid() == 0:  # PostgreSQL refuses to run as root
            ensure_user_exists("pgserver")
            ensure_prefix_permissions(self.data)
            ensure_prefix_permissions(binaries())
            shutil.chown(self.data, "pgserver", "pgserver")
            lower = ["runuser", "-u", "pgserver", "--"]
        binary = f"{binaries()}/"
        made = ["initdb", "-D", str(self.data), "-U", "postgres", "--auth-local=trust", "--auth-host=scram-sha-256"]
        subprocess.run([*lower, binary + made[0], *made[1:]], check=True, capture_output=True, cwd="/")
        with (self.data / "pg_hba.conf").open("a") as file:
            file.write("host all all 10.77.0.0/16 scram-sha-256\n")
        host, port = self.where["postgres"][0], str(PORTS["postgres"])
        self.start(
            "postgres",
            [*lower, binary + "postgres", "-D", str(self.data), "-h", host, "-p", port, "-k", str(self.data)],
        )
        local = f"postgresql:///postgres?host={self.data}&port={port}&user=postgres"
        self.until("postgres", lambda: psycopg.connect(local, connect_timeout=2).close())
        with psycopg.connect(local, autocommit=True) as link:
            link.execute(f"ALTER ROLE postgres PASSWORD '{PASSWORDS['postgres']}'".encode())
        self.psql("postgres", passwords(documented("CREATE ROLE ledger")))

    def psql(self, database: str, text: str, user: str = "postgres") -> str:
        """What psql prints for statements, in the PostgreSQL's own network."""
        words = [f"{binaries()}/psql", self.database(database, user), "-v", "ON_ERROR_STOP=1", "-qtA", "-f", "-"]
        done = subprocess.run(words, input=text, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr)
        return done.stdout.strip()

    def start_s3(self) -> None:
        host = self.where["s3"][0]
        self.start("s3", [sys.executable, "-m", "moto.server", "--host", host, "--port", str(PORTS["s3"])])
        url = f"http://{self.host('s3')}"
        self.until("s3", lambda: urllib.request.urlopen(url, timeout=2).close())
        urllib.request.urlopen(urllib.request.Request(f"{url}/{BUCKET}", method="PUT")).close()

    def start_servers(self) -> None:
        """MLflow's and Prefect's servers, as docs/team.md starts them on the machine that has its checkout in `machine`."""
        s3 = s3_variables(f"http://{self.host('s3')}")
        backend = {"MLFLOW_BACKEND_STORE_URI": self.database("mlflow", "mlflow")}
        backend |= {"MLFLOW_DEFAULT_ARTIFACT_ROOT": f"s3://{BUCKET}/mlflow"} | s3
        own = {"PREFECT_SERVER_DATABASE_CONNECTION_URL": self.database("prefect", "prefect")}
        for name, variables in (("mlflow", backend), ("prefect", own)):
            words = [
                "-m",
                "flows.ui",
                "--only",
                name,
                f"--{name}-port",
                str(PORTS[name]),
                "--host",
                self.where[name][0],
            ]
            self.start(name, [sys.executable, *words], PYTHONPATH=os.fspath(ROOT), **variables)
        self.answers("mlflow", "/health")
        self.answers("prefect", "/api/health")

    def answers(self, name: str, path: str = "/") -> None:
        """Until a service answers over HTTP."""
        url = f"http://{self.host(name)}{path}"
        self.until(name, lambda: urllib.request.urlopen(url, timeout=2).close())

    def until(self, name: str, work: Any, seconds: float = 240) -> None:
        """Until a service answers."""
        until = time.monotonic() + seconds
        while True:
            try:
                work()
                return
            except (OSError, psycopg.Error) as problem:
                if self.processes[name].poll() is not None or time.monotonic() > until:
                    text = (self.folder / f"{name}.log").read_text()[-2000:]
                    raise RuntimeError(f"{name} does not answer: {problem}\n{text}") from None
                time.sleep(0.3)

    def key(self, *words: str) -> str:
        """What `python -m flows.deployment.people` prints on the servers' machine."""
        command = [sys.executable, "-m", "flows.deployment.people", *words]
        done = subprocess.run(
            command,
            cwd=self.machine,
            check=True,
            capture_output=True,
            text=True,
            env=environment(self.folder, PYTHONPATH=os.fspath(ROOT)),
        )
        return done.stdout.strip()

    def variables(self, person: str, key: str) -> dict[str, str]:
        """A person's variables, as docs/team.md puts them in .env."""
        prefect = (self.machine / ".flywheel/prefect.key").read_text().strip()
        return {
            "FLYWHEEL_LEDGER_URL": self.database("ledger", person),
            "MLFLOW_TRACKING_URI": f"http://{self.host('mlflow')}",
            "MLFLOW_TRACKING_USERNAME": person,
            "MLFLOW_TRACKING_PASSWORD": key,
            "PREFECT_API_URL": f"http://{self.host('prefect')}/api",
            "PREFECT_API_AUTH_STRING": prefect,
            **s3_variables(f"http://{self.host('s3')}"),
            "NO_PROXY": f"127.0.0.1,localhost,{','.join(sorted({address for address, _ in self.where.values()}))}",
        }


def binaries() -> Path:
    """The folder of PostgreSQL's programs: Debian's newest, which has the extension pg_trgm that Prefect needs, else
    pgserver's, which has none."""
    from pgserver._commands import POSTGRES_BIN_PATH

    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    return installed[-1].parent if installed else POSTGRES_BIN_PATH


def passwords(text: str) -> str:
    """The documented statements with the passwords of this team; they are named as `password-of-<role>` there."""
    return re.sub(r"password-of-(\w+)", lambda match: PASSWORDS[match[1]], text)
