"""The audit: what it looks up, an answer without a network, and pip-audit beside a fake database."""

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
from flows.diagnosis import advisories
from steps.core.errors import UserError
from tests.conftest import ROOT, python, run

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

    def log_message(self, format: str, *_: object) -> None:
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


def test_without_a_network_the_kept_list_answers_with_its_dates() -> None:
    """In a namespace without any: nothing is asked, and what is known is named with what reaches it."""
    words = ["unshare", "--map-root-user", "--net", "--", *python("flows.audit")]
    done = run(words, ROOT, 60)
    if "unshare" in done.stderr:
        pytest.skip("this machine permits no network namespaces")
    assert done.returncode == audit.UNASKED
    kept = advisories.read()
    assert f"the Python Packaging Advisory Database of {kept.date}, and 2 entries by hand, 2026-11-28" in done.stdout
    assert "cannot be reached" in done.stdout
    for package, name, why in (
        ("diskcache 5.6.3", "CVE-2025-69872", ".flywheel/dvc"),
        ("joblib", "CVE-2024-34997", "joblib.load"),
    ):
        [line] = [line for line in done.stdout.splitlines() if line.startswith(package)]
        reason = done.stdout.splitlines()[done.stdout.splitlines().index(line) + 1]
        assert name in line
        assert "what reaches it: " in reason
        assert why in reason


def test_an_entry_of_the_kept_list_that_nobody_explained_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "requirements").mkdir()
    (tmp_path / "lock.txt").write_text("aiohttp==3.7.3\ndiskcache==5.6.3\npip==25.0\n")
    (tmp_path / "requirements/advisories.json").write_bytes((ROOT / advisories.KEPT).read_bytes())
    monkeypatch.chdir(tmp_path)
    assert audit.main(["lock.txt", "--kept"]) == 1
    printed = capsys.readouterr().out
    assert "aiohttp 3.7.3: PYSEC-2021-76, CVE-2021-21330, GHSA-v6wp-4m6f-gcjg; fixed in 3.7.4" in printed
    assert "3 packages, " in printed
    (tmp_path / "lock.txt").write_text("diskcache==5.6.3\n")
    assert audit.main(["lock.txt", "--kept"]) == 0
    (tmp_path / "requirements/advisories.json").write_text("{}")
    assert audit.main(["lock.txt", "--kept"]) == 2


def test_a_package_is_known_by_any_spelling_of_its_name() -> None:
    advisory = {"id": "PYSEC-2", "affected": [{"package": {"name": "Ruamel.Yaml"}, "versions": ["0.1"]}]}
    wanted = {"package": "ruamel-yaml", "names": ["PYSEC-2"], "versions": ["0.1"]}
    assert advisories.entries(advisory, {"ruamel-yaml"}) == [wanted]


def test_the_list_is_written_from_a_clone(tmp_path: Path) -> None:
    clone, kept = tmp_path / "clone", tmp_path / "kept.json"
    (clone / "vulns/pip").mkdir(parents=True)
    (clone / "vulns/other").mkdir()
    events = [{"introduced": "0"}, {"fixed": "1.2"}, {"introduced": "2.0"}, {"fixed": "2.1"}]
    for package in ("pip", "other"):
        affected = [{"package": {"name": package}, "ranges": [{"type": "ECOSYSTEM", "events": events}]}]
        text = json.dumps({"id": "PYSEC-1", "aliases": ["CVE-1"], "affected": affected})
        (clone / "vulns" / package / "PYSEC-1.yaml").write_text(text)
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@localhost", "-C", str(clone)]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "all"]):
        subprocess.run([*git, *words], check=True)
    assert "1 advisories of 1 packages" in advisories.keep(clone, {"pip"}, kept)
    found = {
        version: advisories.affecting(advisories.read(kept), {"pip": version})
        for version in ("1.1", "1.2", "2.0.5", "3")
    }
    assert [version for version, each in found.items() if each] == ["1.1", "2.0.5"]
    assert found["1.1"][0].names == ("PYSEC-1", "CVE-1")
    with pytest.raises(UserError, match="no clone of the advisory database"):
        advisories.keep(tmp_path, {"pip"}, kept)


def test_what_both_know_is_said_once() -> None:
    kept = [
        advisories.Vulnerability("pip", "1", ("PYSEC-1", "CVE-1"), ()),
        advisories.Vulnerability("x", "1", ("CVE-1",), ()),
    ]
    asked = [advisories.Vulnerability("pip", "1", ("GHSA-1", "CVE-1"), ("2",))]
    assert audit.merged(kept, asked) == [asked[0], kept[1]]


def test_a_missing_lock_file_has_another_exit_code(tmp_path: Path) -> None:
    assert audit.main([os.fspath(tmp_path / "none.txt")]) == 2


def test_a_pip_audit_that_cannot_be_run_is_no_clean_result() -> None:
    for out in ("", "{}", "[]", "No known vulnerabilities"):
        with pytest.raises(audit.Unchecked, match="no such index"):
            audit.report(out, "warning\nno such index\n")


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
    assert out[0].startswith("asked: the database at")
    assert out[1].startswith("pip 19.0: PYSEC-0000-1, CVE-0000-1; fixed in 19.2: ")
    assert out[-1] == "3 packages, 1 known vulnerabilities in 1 of them, 0 of which are explained"
    assert {("dvc", "3.67.1"), ("torch", "2.13.0"), ("pip", "19.0")} <= set(FakeDatabase.asked)
    lock.write_text("dvc==3.67.1\n")
    assert audit.main([os.fspath(lock), "--osv-url", database]) == 0
