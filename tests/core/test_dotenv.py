""".env: what it may hold, who reads it, and that .env.example names all that the code reads."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from steps.core import dotenv

ROOT = Path(__file__).parent.parent.parent
NAME = re.compile(r"\b(?:FLYWHEEL|LANGFUSE|WANDB|MLFLOW|PREFECT|HF|VERIFIERS|OPENENV)_[A-Z]+(?:_[A-Z]+)*\b(?!_)")
# Names that nobody sets by hand, and who sets them.
INTERNAL = {
    "FLYWHEEL_GATEWAY_OWN_KEY": "addons/agents/gateway/play.py, for the gateway's process",
    "FLYWHEEL_ADAPTERS": "addons/fleet/vllm_server.py, for the guard in vLLM's process",
    "FLYWHEEL_CONSENT_KEY": "addons/production/serving/server.py, for the guard in vLLM's process",
    "FLYWHEEL_CORES": "addons/overlap/ahead.py, for the worker that samples ahead",
    "FLYWHEEL_KEY": "environments/bridges/harness.py, for the programs of harnesses",
    "FLYWHEEL_LANE": "addons/overlap/ahead.py, for the worker that samples ahead",
    "FLYWHEEL_LOG": "a flow, for its stages",
    "FLYWHEEL_POOL": "a work pool's template, and flows/deploy.py for prefect.yaml",
    "FLYWHEEL_PROGRESS": "a flow, for its stages",
    "PREFECT_SERVER_LOGS_STREAM_OUT_ENABLED": "flows/ui.py, for Prefect's server",
    "PREFECT_SERVER_LOGS_STREAM_PUBLISHING_ENABLED": "flows/ui.py, for Prefect's server",
    "FLYWHEEL_ROOT": "flows/ui.py, for the worker's flow runs",
    "FLYWHEEL_SHOWN": "addons/production/serving/server.py, for what rewrites requests in vLLM's process",
    "FLYWHEEL_SERVED": "addons/production/serving/server.py, for the split of trial.py in vLLM's process",
    "FLYWHEEL_SERVE_HOST": "addons/production/serving/server.py, for the guard in vLLM's process",
    "FLYWHEEL_SERVE_KEY": "addons/production/ask.py, for itself",
    "FLYWHEEL_SWAP_TOKEN": "addons/production/serving/server.py, for the guard in vLLM's process",
    "MLFLOW_DISABLE_TELEMETRY": "flows/deployment/mlflow_server.py, for itself",
    "MLFLOW_PORT": "the Makefile, of whose variables flows/diagnosis/machine.py speaks",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "flows/deployment/mlflow_server.py, for itself",
    "PREFECT_API_DATABASE_CONNECTION_URL": "the older name, which Prefect still reads",
    "PREFECT_CLI_PROMPT": "flows/ui.py, for Prefect's commands",
    "PREFECT_LOCAL_STORAGE_PATH": "flows/ui.py and the Makefile, beside PREFECT_HOME",
    "PREFECT_MEMO_STORE_PATH": "flows/ui.py and the Makefile, beside PREFECT_HOME",
    "FLYWHEEL_STORE": "addons/accelerate/ranks.py, for the processes that it starts",
    "HF_HUB_ETAG_TIMEOUT": "addons/starts/sources.py, for itself",
    "PREFECT_PORT": "the Makefile, of whose variables flows/diagnosis/machine.py speaks",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "flows/ui.py, for Prefect's server",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "the Makefile, for Prefect's server",
    "PREFECT_UI_ENABLED": "flows/terminal/prefect_server.py, for the server of a run",
    "PREFECT_SERVER_API_AUTH_STRING": "flows/ui.py, for Prefect's server",
    "PREFECT_SERVER_API_CORS_ALLOWED_ORIGINS": "flows/ui.py, for Prefect's server",
    "PREFECT_WORKER_QUERY_SECONDS": "flows/ui.py, for Prefect's worker",
    "WANDB_CACHE_DIR": "addons/trackers/wandb_process.py, for itself",
    "WANDB_DATA_DIR": "addons/trackers/wandb_process.py, for itself",
    "WANDB_ERROR_REPORTING": "addons/trackers/wandb_process.py, for itself",
    "WANDB_SILENT": "addons/trackers/wandb_process.py, for itself",
}
OF_TOOLS = {"HF_ENDPOINT", "OPENAI_API_KEY"}  # read by a library, or under the name that params.yaml gives


def read_by_code(root: Path) -> set[str]:
    """The names that stand in modules, outside tests."""
    variables: set[str] = set()
    for package in ("flows", "steps", "addons", "environments", "viewer"):
        for path in (root / package).rglob("*.py"):
            variables.update(NAME.findall(path.read_text()))
    return variables


def listed(text: str) -> dict[str, str]:
    """Name -> the line above it, of a file such as .env.example."""
    lines = text.splitlines()
    variables = {}
    for number, line in enumerate(lines):
        if match := re.fullmatch(r"#?([A-Z][A-Z_]*)=.*", line):
            variables[match[1]] = lines[number - 1]
    return variables


def test_the_example_names_all_that_is_read() -> None:
    names, example = read_by_code(ROOT), listed((ROOT / ".env.example").read_text())
    assert names - INTERNAL.keys() - example.keys() == set(), "neither in .env.example nor internal"
    assert example.keys() - names - OF_TOOLS == set(), "in .env.example, and nothing reads it"
    assert INTERNAL.keys() - names == set(), "nobody knows these any more"


def test_every_name_has_a_line_of_help_and_none_is_set() -> None:
    text = (ROOT / ".env.example").read_text()
    for name, above in listed(text).items():
        assert re.fullmatch(r"# \S.{10,120}\.", above), name
    assert [line for line in text.splitlines() if line and not line.startswith("#")] == []


def test_the_rule_can_fail(tmp_path: Path) -> None:
    (tmp_path / "steps").mkdir()
    (tmp_path / "steps/a.py").write_text('import os\nos.environ.get("FLYWHEEL_NEW_KNOB")  # not FLYWHEEL_\n')
    assert read_by_code(tmp_path) == {"FLYWHEEL_NEW_KNOB"}


def test_the_example_copied_as_it_is_changes_nothing(tmp_path: Path) -> None:
    shutil.copy(ROOT / ".env.example", tmp_path / ".env")
    assert dotenv.values(tmp_path) == {}


def test_what_the_environment_has_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", os.environ.copy())
    monkeypatch.setitem(os.environ, "FLYWHEEL_A", "mine")
    monkeypatch.delitem(os.environ, "FLYWHEEL_B", raising=False)
    (tmp_path / ".env").write_text(
        "# a comment\nFLYWHEEL_A=theirs\nexport FLYWHEEL_B='two words # and a sign'\nFLYWHEEL_C=\nFLYWHEEL_D=pa$FLYWHEEL_A\n"
    )
    dotenv.load(tmp_path)
    assert {name: os.environ.get(name) for name in ("FLYWHEEL_A", "FLYWHEEL_B", "FLYWHEEL_C", "FLYWHEEL_D")} == {
        "FLYWHEEL_A": "mine",
        "FLYWHEEL_B": "two words # and a sign",
        "FLYWHEEL_C": None,  # a name without a value says nothing
        "FLYWHEEL_D": "pa$FLYWHEEL_A",  # as it stands: a password may hold a $
    }


def test_no_file_is_no_matter(tmp_path: Path) -> None:
    assert dotenv.values(tmp_path) == {}


def test_flows_read_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flows.terminal import command, prefect_server

    monkeypatch.setattr(os, "environ", {"PATH": os.environ["PATH"]})
    monkeypatch.setattr(prefect_server, "use", lambda: None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dvc.yaml").touch()
    (tmp_path / ".env").write_text(f"PREFECT_HOME={tmp_path / 'home'}\nLANGFUSE_HOST=http://127.0.0.1:9\n")
    command.prepare()
    assert os.environ["LANGFUSE_HOST"] == "http://127.0.0.1:9"
    assert (tmp_path / "home").is_dir(), "what prepare itself goes by is read first"


def test_what_the_ui_starts_has_it_and_keeps_its_own_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flows import ui

    monkeypatch.setattr(os, "environ", {"PATH": os.environ["PATH"], "WANDB_PROJECT": "mine"})
    (tmp_path / ".env").write_text(
        "LANGFUSE_SECRET_KEY=s\nWANDB_PROJECT=theirs\nMLFLOW_TRACKING_URI=http://elsewhere\n"
    )
    variables = ui.environment(tmp_path, 4200, 5000)
    assert (variables["LANGFUSE_SECRET_KEY"], variables["WANDB_PROJECT"]) == ("s", "mine")
    assert variables["MLFLOW_TRACKING_URI"] == "http://127.0.0.1:5000"
    assert "LANGFUSE_SECRET_KEY" not in os.environ


def test_tracking_by_hand_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from steps.tracking import __main__ as command

    monkeypatch.setattr(os, "environ", dict(os.environ))
    (tmp_path / ".env").write_text("FLYWHEEL_FROM_FILE=1\n")
    seen: list[str | None] = []

    def started(_: Path, **__: str) -> None:
        seen.append(os.environ.get("FLYWHEEL_FROM_FILE"))
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "MlflowTracker", started)
    with pytest.raises(KeyboardInterrupt):
        command.log(tmp_path)
    assert seen == ["1"]
