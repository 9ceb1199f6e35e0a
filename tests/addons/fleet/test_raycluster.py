"""The connection to a Ray cluster: what is said where there is none."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from addons.fleet import raycluster
from steps.core.errors import UserError


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raycluster, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"the package ray is needed .* extra `ray`"):
        raycluster.connect("auto")


def test_nobody_at_an_address_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(UserError, match=f"nothing answers at ray://127.0.0.1:{port} .*make ray"):
        raycluster.connect(f"ray://127.0.0.1:{port}")
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
    with pytest.raises(UserError, match=f"nothing answers at auto, which is 127.0.0.1:{port}"):
        raycluster.connect("auto")


@pytest.mark.parametrize(
    ("problem", "advice"),
    [
        (
            RuntimeError("Version mismatch: The cluster was started with: Ray: 2.9.0 Python: 3.9.1"),
            "install the same on",
        ),
        (RuntimeError("Python minor versions differ between client and server"), "another Python or another Ray"),
        (ConnectionError("Could not find any running Ray instance"), "start one with `make ray`"),
        (ConnectionError("ray client connection timeout"), "RAY_AUTH_TOKEN"),
        (RuntimeError("InvalidAuthToken: the token is wrong"), "refuses this process's token"),
        (OSError("no space for the object store"), "Ray does not start"),
    ],
)
def test_rays_errors_are_explained(problem: Exception, advice: str) -> None:
    assert advice in str(raycluster.explained("auto", problem))


def test_an_address_is_that_of_the_variable_or_of_the_latest_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(raycluster, "LATEST", tmp_path / "latest")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert raycluster.address_of("auto") == ""
    (tmp_path / "latest").write_text("127.0.0.1:6379\n")
    assert raycluster.address_of("auto") == "127.0.0.1:6379"
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert raycluster.address_of("auto") == "10.0.0.1:6379"
    assert raycluster.address_of("ray://10.0.0.2:10001") == "10.0.0.2:10001"


def test_engines_are_counted_by_node(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [{"Resources": {"CPU": cpus}} for cpus in (4.0, 3.0, 1.0)]
    monkeypatch.setattr(raycluster, "alive_nodes", lambda: nodes)
    assert raycluster.places({"CPU": 2}) == 3
    assert raycluster.largest("CPU") == 4
    assert raycluster.largest("GPU") == 0
    with pytest.raises(UserError, match=r"policy.tensor_parallel: 2 needs a node with 2 GPU and 1 CPU"):
        raycluster.check_fit({"GPU": 2, "CPU": 1}, "policy.tensor_parallel: 2")


def test_own_code_is_shipped_and_installed_code_is_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "own_package").mkdir()
    (tmp_path / "own_package" / "__init__.py").touch()
    (tmp_path / "own_module.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert raycluster.is_own("own_package")
    assert raycluster.is_own("own_module")
    assert not raycluster.is_own("json")
    assert not raycluster.is_own("no_such_package")
    assert raycluster.folder("own_package") == tmp_path / "own_package"
    assert raycluster.folder("own_module") == tmp_path / "own_module.py"
