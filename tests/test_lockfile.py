"""dvc.lock written quickly is what DVC writes, byte for byte."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from flows import lockfile

LONG = "python -m steps.rollout --scenarios run/scenarios --adapter run/000/adapter --trajectories run/001/t --iteration 001"


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
    from dvc.utils.serialize import modify_yaml

    start: dict[str, Any] = {"schema": "2.0", "stages": {f"rollout@{n:03d}": entry(n) for n in range(1, 4)}}
    start["stages"] |= {"scenarios": entry(7), "score@001": entry(8)}
    paths = [tmp_path / where / "dvc.lock" for where in ("ours", "dvc")]
    for path, way in zip(paths, (lockfile.modify, modify_yaml), strict=True):
        path.parent.mkdir()
        path.write_text(lockfile.dump(start))
        with way(str(path)) as data:
            data["stages"].update({name: entry(99)})
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert [path.name for path in paths[0].parent.iterdir()] == ["dvc.lock"]


def test_what_cannot_be_spliced_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "dvc.lock"
    wanted = {"schema": "2.0", "stages": {"a": entry(1)}, "datasets": [{"name": "z"}]}
    path.write_text(lockfile.dump(wanted))
    with lockfile.modify(str(path)) as data:
        data["stages"]["b"] = entry(2)
        wanted = copy.deepcopy(data)
    from dvc.utils.serialize import parse_yaml

    assert parse_yaml(path.read_text(), path) == wanted


def test_dvc_is_itself_again_afterwards() -> None:
    from dvc import dvcfile

    original = dvcfile.modify_yaml
    with lockfile.quick():
        assert dvcfile.modify_yaml is lockfile.modify
    assert dvcfile.modify_yaml is original


@pytest.mark.parametrize("left", [b"", b'{"read": {"/x', b"\0\0"])
def test_a_file_that_a_kill_cut_short_is_removed(tmp_path: Path, left: bytes) -> None:
    path = tmp_path / ".dvc/tmp/rwlock"
    path.parent.mkdir(parents=True)
    lockfile.mend(tmp_path)
    path.write_bytes(left)
    lockfile.mend(tmp_path)
    assert not path.exists()


def test_a_whole_file_stays(tmp_path: Path) -> None:
    path = tmp_path / ".dvc/tmp/rwlock"
    path.parent.mkdir(parents=True)
    path.write_text('{"write": {}, "read": {"/x": [{"pid": 1, "cmd": "dvc repro"}]}}')
    lockfile.mend(tmp_path)
    assert path.exists()
