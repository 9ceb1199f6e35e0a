"""The audit: what it looks up, a database that refuses connections, and pip-audit beside a fake database."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from flows import audit
from steps.core.errors import UserError
from tests.conftest import ROOT, free_port, python, run

LOCK = "# made\ndvc==3.67.1\n    # via x\ntorch==2.13.0+cpu\npip==19.0 ; python_version < '4'\n"


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    path = tmp_path / "cpu.txt"
    path.write_text(LOCK)
    return path


class FakeDatabase(BaseHTTPRequestHandler):
    """Speaks OSV's protocol, and knows of one vulnerability, in pip."""

    asked: list[tuple[str, str]]

    def do_POST(self) -> None:
        query = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name, version = query["package"]["name"], query["version"]
        self.asked.append((name, version))
        affected = [
            {
                "package": {"name": "pip", "ecosystem": "PyPI"},
                "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "19.2"}]}],
            }
        ]
        entry = {"id": "PYSEC-0000-1", "aliases": ["CVE-0000-1"], "summary": "x", "affected": affected}
        entry |= {"modified": "2026-01-01T00:00:00Z", "published": "2026-01-01T00:00:00Z"}
        body = json.dumps({"vulns": [entry]} if name == "pip" and version == "19.0" else {}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def database() -> Iterator[str]:
    FakeDatabase.asked = []
    with ThreadingHTTPServer(("127.0.0.1", 0), FakeDatabase) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1/query"
        server.shutdown()


def test_the_projects_own_lock_files_are_looked_up_whole() -> None:
    lists = audit.pins(ROOT / "requirements" / name for name in audit.LOCKS)
    texts = [(ROOT / "requirements" / name).read_text() for name in audit.LOCKS]
    wanted = {match for text in texts for match in re.findall(r"^([a-z0-9][\w.-]*)==([^\s;+]+)", text, re.MULTILINE)}
    assert {(package, version) for each in lists for package, version in each.items()} == wanted
    assert len(wanted) > 300


def test_two_versions_of_a_package_are_looked_up_apart(lock: Path, tmp_path: Path) -> None:
    other = tmp_path / "gpu.txt"
    other.write_text("dvc==3.0\ntorch==2.13.0\nvllm==1\n")
    first = {"dvc": "3.67.1", "torch": "2.13.0", "pip": "19.0", "vllm": "1"}
    assert audit.pins([lock, other]) == [first, {"dvc": "3.0"}]
    assert audit.pins([lock, lock]) == audit.pins([lock])


@pytest.mark.parametrize("text", ["", "# nothing\n", "dvc==\n"])
def test_a_damaged_lock_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "cpu.txt"
    path.write_text(text)
    with pytest.raises(UserError, match=r"cpu\.txt"):
        audit.pins([path])


def test_a_database_that_refuses_connections_is_told_in_one_sentence(lock: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}/v1/query"
    done = run(python("flows.audit", os.fspath(lock), "--osv-url", url), ROOT, 60, NO_PROXY="127.0.0.1")
    assert done.returncode == audit.UNCHECKED
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        f"error: the packages were not checked, because the database of vulnerabilities at {url} cannot be"
    )
    assert "refused" in line


def test_a_missing_lock_file_has_another_exit_code(tmp_path: Path) -> None:
    assert audit.main([os.fspath(tmp_path / "none.txt")]) == 2


def test_a_pip_audit_that_cannot_be_run_is_no_clean_result() -> None:
    for out in ("", "{}", "[]", "No known vulnerabilities"):
        with pytest.raises(audit.Unchecked, match="no such index") as refused:
            audit.report(out, "warning\nno such index\n")
        assert refused.value.code == audit.UNCHECKED


def test_what_pip_audit_reports_is_read() -> None:
    vulnerable = {"id": "PYSEC-1", "fix_versions": ["19.2"], "aliases": ["CVE-1"]}
    entries = [{"name": "pip", "version": "19.0", "vulns": [vulnerable]}, {"name": "own", "skip_reason": "not on PyPI"}]
    read = audit.report(json.dumps({"dependencies": entries, "fixes": []}), "")
    (problem,) = audit.vulnerabilities(read)
    assert problem.line == ('pip 19.0: PYSEC-1, CVE-1; fixed in 19.2: `make lock ARGS="--upgrade-package pip"`')
    assert audit.skipped(read) == ["own: not on PyPI"]


@pytest.mark.slow
def test_the_real_pip_audit_beside_a_fake_database(
    lock: Path, database: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    words = [audit.uv(), "tool", "run", "--isolated", "--from", audit.PIP_AUDIT, "pip-audit", "--version"]
    got = subprocess.run(words, capture_output=True, text=True, timeout=240)
    if got.returncode:
        pytest.skip(f"no package registry to get pip-audit from: {got.stderr.strip().splitlines()[-1]}")
    assert audit.main([os.fspath(lock), "--osv-url", database]) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("pip 19.0: PYSEC-0000-1, CVE-0000-1; fixed in 19.2: ")
    assert out[-1] == "3 packages, 1 known vulnerabilities in 1 of them"
    assert {("dvc", "3.67.1"), ("torch", "2.13.0"), ("pip", "19.0")} <= set(FakeDatabase.asked)
    lock.write_text("dvc==3.67.1\n")
    assert audit.main([os.fspath(lock), "--osv-url", database]) == 0
