"""chain.yaml: which adapter samples for which iteration, with and without train.overlap."""

from __future__ import annotations

from pathlib import Path

import pytest

from steps.core.errors import UserError
from steps.project.chain import policy_lag, read_chain, sampled_with, write_chain


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


def test_chains_from_before_have_no_lag(tmp_path: Path) -> None:
    (tmp_path / "chain.yaml").write_text('iterations: {"001": {prev: "000"}, "002": {prev: "001"}}\n')
    assert [sampled_with(tmp_path, number) for number in ("001", "002", "007")] == ["000", "001", "006"]
    assert policy_lag(tmp_path, "002") == 0
    assert sampled_with(tmp_path / "elsewhere", "002") == "001"


def test_a_policy_that_is_no_iteration_is_refused(tmp_path: Path) -> None:
    (tmp_path / "chain.yaml").write_text('iterations: {"001": {prev: "000", policy: "x; rm"}}\n')
    with pytest.raises(UserError, match="is no name of an iteration"):
        read_chain(tmp_path)
