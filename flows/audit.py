"""Audit: which of the locked packages have known vulnerabilities, by a database on the network or by the list kept here.

    python -m flows.audit                            # cpu.txt, gpu.txt and dev.txt in requirements/ (`make audit`)
    python -m flows.audit requirements/gpu.txt       # one lock file
    python -m flows.audit --kept                     # by requirements/advisories.json alone: nothing is sent
    python -m flows.audit --keep ../advisory-database   # write that list, from a clone of pypa/advisory-database

The database is asked by pip-audit, which is no package of the environment: `uv tool run` keeps this version of it, and what
it needs, in an environment of its own in uv's cache. Nothing is installed from the lock files. Their names and versions go
to https://api.osv.dev unless --osv-url names another. Where it cannot be asked, the kept list answers, with its dates.

Exit codes: 0 where no package has a known vulnerability, 1 where one has, 2 where a lock file or the list is missing or
damaged, 3 where none has by the kept list, and the database could not be asked. What is known to be there, and why it
reaches nothing, is said each time and counts as none.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from environments.kit.http_client import NoAnswer, asked
from flows.diagnosis import advisories
from flows.diagnosis.advisories import Vulnerability
from steps.core.errors import UserError
from steps.core.terminal import command_parser, exit_code

PIP_AUDIT = "pip-audit==2.10.0"
OSV = "https://api.osv.dev/v1/query"
LOCKS = ("cpu.txt", "gpu.txt", "dev.txt")
SECONDS = 10.0  # for the database's first answer
PATIENCE = 1800.0  # seconds for pip-audit, which asks for each package by itself
UNASKED = 3  # the exit code


class Unchecked(UserError):
    """The database could not be asked."""


def pins(paths: Iterable[Path]) -> list[dict[str, str]]:
    """Package -> version, each pair once, in as few lists as have one version of each package.

    A build's own part (torch 2.13.0+cpu) is left out, which databases do not know. UserError where a file is missing.
    """
    lists: list[dict[str, str]] = [{}]
    for path in paths:
        if not path.is_file():
            raise UserError(f"{path} is no lock file: `git checkout -- requirements` brings the project's own back")
        count = 0
        for line in path.read_text(errors="replace").splitlines():
            name, is_pin, rest = line.partition("==")
            if not is_pin or line.startswith(("#", " ")):
                continue
            package = canonicalize_name(name)
            version = (rest.split() or [""])[0].partition(";")[0].partition("+")[0]
            if not version:
                raise UserError(f"{path} pins {package} at no version: `git checkout -- {path}` brings the file back")
            count += 1
            if all(each.get(package) != version for each in lists):
                if all(package in each for each in lists):
                    lists.append({})
                next(each for each in lists if package not in each)[package] = version
        if not count:
            raise UserError(f"{path} pins no package: it is no lock file, or it was cut short")
    return lists


def check_reachable(url: str) -> None:
    """Unchecked where no database of vulnerabilities answers at the address."""
    query = json.dumps({"package": {"ecosystem": "PyPI", "name": "pip"}, "version": "0"}).encode()
    try:
        reply = asked("POST", url, seconds=SECONDS, content=query, headers={"Content-Type": "application/json"})
        is_database = isinstance(reply.json(), dict)
    except (NoAnswer, ValueError) as problem:
        raise Unchecked(f"the database of vulnerabilities at {url} cannot be reached ({problem})") from None
    if not is_database:
        raise Unchecked(f"what answers at {url} is no database of vulnerabilities")


def uv() -> str:
    """The environment's uv, or the one on the path."""
    own = Path(sys.executable).parent / "uv"
    program = os.fspath(own) if own.exists() else shutil.which("uv")
    if program is None:
        raise Unchecked("uv is missing, which runs pip-audit: `make install`")
    return program


def audit(pinned: dict[str, str], url: str) -> dict[str, Any]:
    """pip-audit's report on these packages. Unchecked where it cannot be run, or ends without one."""
    with tempfile.TemporaryDirectory() as folder:
        listed = Path(folder) / "requirements.txt"
        listed.write_text("".join(f"{package}=={version}\n" for package, version in sorted(pinned.items())))
        words = [uv(), *f"tool run --isolated --from {PIP_AUDIT} pip-audit".split(), "--requirement", os.fspath(listed)]
        words += "--no-deps --disable-pip --progress-spinner off --format json".split()
        words += ["--vulnerability-service", "osv", "--osv-url", url]
        hidden = ("VIRTUAL_ENV", "UV_FIND_LINKS", "PYTHONPATH")
        variables = {name: value for name, value in os.environ.items() if name not in hidden}
        try:
            done = subprocess.run(
                words,
                cwd=folder,
                env=variables,
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired:
            raise Unchecked(f"pip-audit had no result after {PATIENCE:g} s") from None
    return report(done.stdout, done.stderr)


def report(out: str, err: str) -> dict[str, Any]:
    """The report that pip-audit has printed. Unchecked where it has not."""
    try:
        read = dict(json.loads(out))
        if isinstance(read["dependencies"], list):
            return read
        raise ValueError("no list of packages")
    except (ValueError, LookupError, TypeError):
        reason = (err.strip().splitlines() or ["it printed nothing"])[-1][:300]
        raise Unchecked(f"{PIP_AUDIT} could not be run ({reason})") from None


def vulnerabilities(read: dict[str, Any]) -> list[Vulnerability]:
    return [
        Vulnerability(
            entry["name"],
            entry["version"],
            (each["id"], *sorted(each.get("aliases") or [])),
            tuple(each.get("fix_versions") or []),
        )
        for entry in read["dependencies"]
        for each in entry.get("vulns") or []
    ]


def skipped(read: dict[str, Any]) -> list[str]:
    """What was not looked up, with pip-audit's reason."""
    return [f"{entry['name']}: {entry['skip_reason']}" for entry in read["dependencies"] if "skip_reason" in entry]


def main(words: list[str] | None = None) -> int:
    parser = command_parser("flows.audit", __doc__)
    parser.add_argument(
        "locks", nargs="*", type=Path, metavar="FILE", help="lock files (default: all in requirements/)"
    )
    parser.add_argument("--osv-url", default=OSV, metavar="ADDRESS", help=f"the database's (default: {OSV})")
    parser.add_argument("--kept", action="store_true", help="ask no database: the kept list alone")
    parser.add_argument(
        "--keep", type=Path, metavar="CLONE", help="write the list from a clone of pypa/advisory-database"
    )
    options = parser.parse_args(words)
    problems, codes = list[Vulnerability](), [0]

    def work() -> None:
        lists = pins(options.locks or [Path("requirements") / name for name in LOCKS])
        if options.keep:
            print(advisories.keep(options.keep, {package for pinned in lists for package in pinned}))
        kept = advisories.read()
        entries = [each for pinned in lists for each in advisories.affecting(kept, pinned)]
        if not options.kept:
            try:
                check_reachable(options.osv_url)
                reports = [audit(pinned, options.osv_url) for pinned in lists]
                entries = merged(entries, [each for read in reports for each in vulnerabilities(read)])
                for line in [line for read in reports for line in skipped(read)]:
                    print(f"not looked up: {line}")
                print(f"asked: the database at {options.osv_url}, and {kept.description}")
            except Unchecked as problem:
                codes[0] = UNASKED
                print(f"{problem}; this is by {kept.description}: what became known later is not in it")
        else:
            print(f"by {kept.description}: what became known later is not in it")
        for each in entries:
            reason = kept.reason(each)
            print(f"{each.line}" + (f"\n    what reaches it: {reason}" if reason else ""))
            problems.extend([] if reason else [each])
        packages = len({each.package for each in entries})
        print(
            f"{sum(map(len, lists))} packages, {len(entries)} known vulnerabilities in {packages} of them, "
            f"{len(entries) - len(problems)} of which are explained"
        )

    return exit_code(work) or (1 if problems else codes[0])


def merged(kept: list[Vulnerability], asked: list[Vulnerability]) -> list[Vulnerability]:
    """Both, each once: entries of one package that share a name are the same."""
    names = {(each.package, name) for each in asked for name in each.names}
    return [*asked, *(each for each in kept if not {(each.package, name) for name in each.names} & names)]


if __name__ == "__main__":
    sys.exit(main())
