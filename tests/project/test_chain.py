"""chain.yaml: which adapter samples for which iteration, with and without train.overlap."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.rescore import choose
from steps.core.errors import UserError
from steps.project import chain
from steps.project.chain import CHAMPION, fits, origins, policy_lag, read_chain, sampled_with, write_chain


def links(overlap: int) -> dict[str, tuple[str, str]]:
    write_chain(4, 2, overlap)
    return {name: (link["prev"], link["policy"]) for name, link in read_chain(Path.cwd())["iterations"].items()}


@pytest.mark.parametrize(
    ("overlap", "policies"),
    [
        (0, ["000", "001", "002", "003"]),
        (1, ["000", "000", "001", "002"]),
        (2, ["000", "000", "000", "001"]),
        (4, ["000", "000", "000", "000"]),
    ],
)
def test_an_iteration_samples_with_an_adapter_that_is_so_much_older(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overlap: int, policies: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    before = ["000", "001", "002", "003"]
    assert list(links(overlap).values()) == list(zip(before, policies, strict=True))
    lags = [policy_lag(tmp_path, f"{number:03d}") for number in range(1, 5)]
    assert lags == [min(overlap, number - 1) for number in range(1, 5)]


@pytest.mark.parametrize(
    ("every", "overlap", "opponents"),
    [
        (1, 0, ["000", "001", "002", "003", "004", "005"]),
        (2, 0, ["000", "000", "002", "002", "004", "004"]),
        (4, 0, ["000", "000", "000", "000", "004", "004"]),
        (2, 1, ["000", "000", "000", "002", "002", "004"]),
        (None, 1, ["000", "000", "001", "002", "003", "004"]),  # no opponent: the policy's own
    ],
)
def test_the_opponent_is_frozen_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int | None, overlap: int, opponents: list[str]
) -> None:
    """And never newer than the adapter that samples."""
    monkeypatch.chdir(tmp_path)
    write_chain(6, 1, overlap, opponent=every)
    links = read_chain(tmp_path)["iterations"]
    assert [link["opponent"] for link in links.values()] == [f"run/{name}/adapter" for name in opponents]
    assert all(link["opponent"] <= f"run/{link['policy']}/adapter" for link in links.values())


def test_the_first_opponent_is_what_the_run_starts_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_chain(3, 1, origins=["start"], opponent=2)
    opponents = [link["opponent"] for link in read_chain(tmp_path)["iterations"].values()]
    assert opponents == ["run/start/adapter", "run/start/adapter", "run/002/adapter"]
    write_chain(2, 1, opponent=CHAMPION)
    assert {link["opponent"] for link in read_chain(tmp_path)["iterations"].values()} == {"start/champion"}


def test_an_opponent_elsewhere_is_refused(tmp_path: Path) -> None:
    (tmp_path / "chain.yaml").write_text('iterations: {"001": {prev: "000", opponent: "/tmp/x; rm"}}\n')
    with pytest.raises(UserError, match="is no adapter of an opponent"):
        read_chain(tmp_path)


def test_chains_from_before_have_no_lag(tmp_path: Path) -> None:
    (tmp_path / "chain.yaml").write_text('iterations: {"001": {prev: "000"}, "002": {prev: "001"}}\n')
    assert [sampled_with(tmp_path, number) for number in ("001", "002", "007")] == ["000", "001", "006"]
    assert policy_lag(tmp_path, "002") == 0
    assert sampled_with(tmp_path / "elsewhere", "002") == "001"


def test_a_policy_that_is_no_iteration_is_refused(tmp_path: Path) -> None:
    (tmp_path / "chain.yaml").write_text('iterations: {"001": {prev: "000", policy: "x; rm"}}\n')
    with pytest.raises(UserError, match="is no name of an iteration"):
        read_chain(tmp_path)


@pytest.mark.parametrize(
    ("before", "continued"), [([], "000"), (["start"], "start"), (["sft"], "sft"), (["start", "sft"], "sft")]
)
def test_the_first_iteration_continues_what_was_there_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: list[str], continued: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_chain(3, 2, 1, before)
    chain = read_chain(tmp_path)
    assert origins(tmp_path) == before
    assert chain["iterations"] == {
        "001": {"prev": continued, "policy": continued, "opponent": f"run/{continued}/adapter"},
        "002": {"prev": "001", "policy": continued, "opponent": f"run/{continued}/adapter"},
        "003": {"prev": "002", "policy": "001", "opponent": "run/001/adapter"},
    }
    assert list(chain["evaluated"]) == ["000", *before, "001", "002", "003"]
    assert {side["against"] for side in chain["evaluated"].values()} == {"base.json", "evaluation"}
    if "sft" in before:
        assert chain["warmed"] == {"sft": {"prev": "start" if "start" in before else "000"}}
    assert [policy_lag(tmp_path, number) for number in ("001", "002", "003")] == [0, 1, 1]


def test_a_chain_of_a_fresh_run_says_nothing_of_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_chain(1, 1)
    assert not {"started", "warmed"} & read_chain(tmp_path).keys()
    (tmp_path / "chain.yaml").write_text("warmed: {sft: {prev: '$(id)'}}\n")
    with pytest.raises(UserError, match="is no name of an iteration"):
        origins(tmp_path)


def test_iterations_that_a_longer_run_left_are_not_judged_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their scenarios are of that run, which may have been of another task."""
    monkeypatch.chdir(tmp_path)
    write_chain(2, 1)
    for name in ("001", "002", "003"):
        (tmp_path / "run" / name).mkdir(parents=True)
        (tmp_path / "run" / name / "trajectories.parquet").touch()
    assert choose(None) == ["001", "002"]
    with pytest.raises(UserError, match="--iterations 3: give a number or a range of 001 to 002"):
        choose("3")


def test_a_chain_says_by_which_key_the_task_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_chain(1, 1)
    assert "task" not in read_chain(tmp_path), "a single task is named in params.yaml alone"
    assert read_chain(tmp_path)["of"] == {"param": "task", "rubric": "/rubric.md"}
    (tmp_path / "chain.yaml").unlink()
    assert not fits(tmp_path, False), "there is none yet"
    (tmp_path / "chain.yaml").write_text("# nothing\n")
    assert not fits(tmp_path, False)
    write_chain(1, 1)
    assert (fits(tmp_path, False), fits(tmp_path, True)) == (True, False)
    write_chain(1, 1, tasks="multiplication+tic_tac_toe")
    assert (fits(tmp_path, False), fits(tmp_path, True)) == (False, True)
    assert read_chain(tmp_path)["task"] == "multiplication+tic_tac_toe"
    assert read_chain(tmp_path)["of"] == {"param": "tasks", "rubric": ""}
    for text, words in (
        ("task: $(id)+x\n", "are no names of several tasks"),
        ("task: single\n", "are no names of several tasks"),
        ("of: {param: $(id), rubric: ''}\n", "of must be"),
    ):
        (tmp_path / "chain.yaml").write_text(text)
        with pytest.raises(UserError, match=words):
            read_chain(tmp_path)


def test_policies_stand_in_the_order_in_which_a_run_makes_them() -> None:
    names = ["002", "sft", "000", "010", "start", "001"]
    assert sorted(names, key=chain.place) == ["000", "start", "sft", "001", "002", "010"]
    assert [chain.label(name) for name in ("004", "sft")] == ["iteration 4", "run/sft"]


def test_what_the_iterations_began_with_can_be_the_best_and_is_tested_beside_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_chain(3, "sft", origins=["sft"])
    assert read_chain(tmp_path)["tested"] == {"base": "000", "best": "sft"}
    assert chain.tested_stages(tmp_path) == ["test@base", "test@best"]
    write_chain(3, "002", origins=["start", "sft"])
    assert read_chain(tmp_path)["tested"] == {"base": "000", "best": "002", "begun": "sft"}
    assert chain.tested_stages(tmp_path) == ["test@base", "test@best", "test@begun"]
    assert chain.misshapen(read_chain(tmp_path)) == ""
