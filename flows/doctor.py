"""Doctor: says in plain words whether this project's folder and this machine are well, and how to mend what is not.

    python -m flows.doctor                 # one line for each check: ok, warn or bad (`make doctor`)
    python -m flows.doctor --mend          # first makes the repairs that are safe, and names each
    python -m flows.doctor --json          # the findings, for programs
    python -m flows.doctor --thorough      # reads all versioned files, however large they are

Exit codes: 0 where nothing is bad, 1 where something is. Looking changes nothing and takes a few seconds, because each check
is given up after its time limit. --mend removes locks and temporary files of processes that have ended, brings back missing
outputs that DVC's cache has whole, writes damaged files of the cache again from whole copies, and closes files with keys to
others. It ends no process, changes no output that is there, and does nothing while another command is at work in the folder.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from flows.diagnosis import hashes, locks, machine, secret_files, servers
from flows.diagnosis.findings import BAD, Check, Finding, Place, ending, examine, failure, place
from flows.repro import folder_lock
from steps.core.terminal import command_parser

CHECKS = (
    Check("versions", machine.versions),
    Check("addons", machine.addons),
    Check("ports", machine.ports),
    Check("disk", machine.disk),
    Check("memory", machine.memory),
    Check("gpu", machine.gpu, machine.GPU_SECONDS),
    Check("hashes", hashes.hashes, hashes.SECONDS + 1.5),
    Check("locks", locks.locks),
    Check("orphans", locks.orphans),
    # Each of them is a check of its own, so that a server that hangs does not hide what is known of the others.
    Check("mlflow", lambda where: [servers.mlflow(where)]),
    Check("prefect", lambda where: [servers.prefect(where)]),
    Check("ledger", lambda where: [servers.of_ledger(where)]),
    Check("remotes", servers.remotes),
    Check("keys", secret_files.keys),
)
THOROUGH_SECONDS = 3600.0  # for hashes


def checks(where: Place) -> list[Check]:
    """The checks with their time limits."""
    return [
        check._replace(seconds=THOROUGH_SECONDS) if where.is_thorough and check.name == "hashes" else check
        for check in CHECKS
    ]


def mend(where: Place, findings: Sequence[Finding]) -> list[str]:
    """Make the safe repairs while no other command is at work, and say each in a sentence; also one that failed."""
    repairs = [finding for finding in findings if finding.mend is not None]
    if not repairs:
        return []
    done = []
    try:
        with folder_lock.held(where.root, folder_lock.command_line()):
            for finding in repairs:
                assert finding.mend is not None
                try:
                    done.append(f"mended: {finding.mend()}")
                except Exception as problem:
                    done.append(f"not mended: {finding.text} ({failure(problem)})")
    except Exception as problem:
        done.append(f"nothing was mended: {failure(problem)}")
    return done


def main(words: list[str] | None = None) -> int:
    parser = command_parser("flows.doctor", __doc__)
    parser.add_argument("--mend", action="store_true", help="make the safe repairs, and look again")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument(
        "--thorough", action="store_true", help="read all versioned files, also those of many gigabytes"
    )
    parser.add_argument(
        "--free-gb", type=float, default=2.0, metavar="N", help="disk space that a run needs (default: 2)"
    )
    services = machine.services()
    for name, service in services.items():
        port = service.port
        parser.add_argument(f"--{name.lower()}-port", type=int, default=port, metavar="N", help=f"(default: {port})")
    options = parser.parse_args(words)

    ports = {name: getattr(options, f"{name.lower()}_port") for name in services}
    where = place(Path.cwd(), ports, options.free_gb, options.thorough)
    findings = examine(where, checks(where))
    mended = mend(where, findings) if options.mend else []
    if mended:
        where = place(Path.cwd(), ports, options.free_gb, options.thorough)
        findings = examine(where, checks(where))
    if options.json:
        listed = [{"check": each.check, "state": each.state, "text": each.text, "cure": each.cure} for each in findings]
        print(json.dumps({"findings": listed, "mended": mended}, indent=2))
    else:
        print("\n".join([*mended, *(finding.line for finding in findings), ending(findings)]))
    return 1 if any(finding.state == BAD for finding in findings) else 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # a check that was given up may still wait in a thread
