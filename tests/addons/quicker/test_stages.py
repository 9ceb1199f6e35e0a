"""What DVC does once for each stage is what it does each time, byte for byte."""

from __future__ import annotations

import contextlib
import copy
from pathlib import Path
from typing import Any

import pytest

from addons.quicker.stages import LockFile, can_hash
from flows.repro.pipeline import Pipeline
from steps.core.errors import UserError
from tests.conftest import run

LONG = (
    "steps/python -m steps.rollout --scenarios run/scenarios --adapter run/000/adapter --trajectories run/t --number 1"
)


def entry(number: int) -> dict[str, Any]:
    deps = [{"path": f"steps/{name}.py", "hash": "md5", "md5": f"{number:032d}", "size": number} for name in "abc"]
    params = {"params.yaml": {"policy": {"lora": {"rank": 16, "alpha": 32}, "dtype": "float32"}, "seed": number}}
    return {
        "cmd": f"{LONG} {number}",
        "deps": deps,
        "params": params,
        "outs": [{"path": "run/x", "md5": "1e5", "size": 1}],
    }


@pytest.mark.parametrize("name", ["rollout@002", "score@001", "update@009", "scenarios"])
def test_bytes_are_dvcs(tmp_path: Path, name: str) -> None:
    from dvc.utils.serialize import dumps_yaml, modify_yaml

    start: dict[str, Any] = {"schema": "2.0", "stages": {f"rollout@{n:03d}": entry(n) for n in range(1, 4)}}
    start["stages"] |= {"scenarios": entry(7), "score@001": entry(8)}
    paths = [tmp_path / where / "dvc.lock" for where in ("ours", "dvc")]
    for path, way in zip(paths, (LockFile().modify, modify_yaml), strict=True):
        path.parent.mkdir()
        path.write_text(dumps_yaml(start))
        with way(str(path)) as data:
            data["stages"].update({name: entry(99)})
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert [path.name for path in paths[0].parent.iterdir()] == ["dvc.lock"]


def test_what_cannot_be_spliced_is_written_whole(tmp_path: Path) -> None:
    from dvc.utils.serialize import dumps_yaml, parse_yaml

    path = tmp_path / "dvc.lock"
    content = {"schema": "2.0", "stages": {"a": entry(1)}, "datasets": [{"name": "z"}]}
    path.write_text(dumps_yaml(content))
    with LockFile().modify(str(path)) as data:
        data["stages"]["b"] = entry(2)
        content = copy.deepcopy(data)
    assert parse_yaml(path.read_text(), path) == content


STAGE = "stages: {copy: {cmd: cp a b, deps: [a], outs: [b]%s}}"


def test_what_is_kept_of_files_between_stages_goes_with_their_text(repository: Path) -> None:
    pipeline, dvc_yaml, params = Pipeline(Path.cwd()), repository / "dvc.yaml", repository / "params.yaml"
    assert not pipeline.reproduce("copy")
    dvc_yaml.write_text(STAGE % ", params: [seed]")
    params.write_text("seed: 1")
    assert pipeline.reproduce("copy")
    assert not pipeline.reproduce("copy")
    params.write_text("seed: 2")
    assert pipeline.reproduce("copy"), "another text of params.yaml"
    assert "seed: 2" in (repository / "dvc.lock").read_text()
    for _ in range(2):
        dvc_yaml.write_text(STAGE % ", params: 3")
        with pytest.raises(UserError, match=r"dvc\.yaml"):
            pipeline.reproduce("copy")
    dvc_yaml.write_text(STAGE % ", params: [seed]")
    assert not pipeline.reproduce("copy")


def test_an_output_that_git_has_is_refused_as_long_as_git_has_it(repository: Path) -> None:
    pipeline = Pipeline(Path.cwd())
    for text in "bc":
        (repository / "a").write_text(text)
        assert pipeline.reproduce("copy")
        assert run(["git", "add", "--force", "b"], repository).returncode == 0
        (repository / "a").write_text(f"not {text}")
        with pytest.raises(UserError, match="already tracked"):
            pipeline.reproduce("copy")
        assert run(["git", "rm", "--cached", "--force", "--quiet", "b"], repository).returncode == 0


def test_which_stages_are_in_the_run_cache_is_as_dvc_has_it(repository: Path) -> None:
    from dvc.repo import Repo
    from dvc.stage import cache

    more = {
        "copy": "deps: [a], outs: [b]",
        "always": "deps: [a], outs: [c], always_changed: true",
        "sourceless": "outs: [d]",
        "barren": "deps: [a]",
        "lasting": "deps: [a], outs: [{e: {persist: true}}]",
        "outside": f"deps: [a], outs: [{{{repository.parent / 'f'}: {{cache: false}}}}]",
        "with_parameters": "deps: [a], params: [seed], outs: [g]",
    }
    (repository / "params.yaml").write_text("seed: 1")
    stages = ", ".join(f"{name}: {{cmd: 'true', {rest}}}" for name, rest in more.items())
    (repository / "dvc.yaml").write_text(f"stages: {{{stages}}}")
    with contextlib.closing(Repo(str(repository))) as repo:
        ours = {stage.name: bool(can_hash(stage)) for stage in repo.index.stages}
        assert ours == {stage.name: bool(cache._can_hash(stage)) for stage in repo.index.stages}
    assert {name for name, is_cached in ours.items() if is_cached} == {"copy", "with_parameters"}
