"""The model of a fleet on paper: two rows by hand, and the tables of docs/scale.md are what it says."""

from __future__ import annotations

import re

import pytest

from benchmarks import scale
from tests.conftest import ROOT


def test_parts_by_hand() -> None:
    """16 engines with 7 workers, on 2 machines: 2,048 episodes of 453 tokens, 443 bytes each."""
    spent = scale.parts(scale.WORKLOADS["embedded"], 16, 7)
    assert spent["sample"] == pytest.approx(128 * 0.0227)
    assert spent["update, divided"] == pytest.approx(2048 * 0.0086 / 7)
    assert spent["update, in every worker"] == pytest.approx(2048 * 2.8e-4 + 7 * 2048 * 443 / 1.25e9)
    assert spent["ship adapter"] == pytest.approx(2 * 6.3e5 / 1.25e9)
    assert spent["score"] == pytest.approx(2048 * 4.4e-4)
    assert spent["update, start of workers"] == 20
    assert scale.parts(scale.WORKLOADS["embedded"], 1, 1)["update, start of workers"] == 0, "none is started"


def test_overlap_hides_the_shorter_of_sampling_and_update() -> None:
    for load in scale.WORKLOADS.values():
        for engines in (1, 8, 64):
            workers = scale.workers_for(load, engines)
            spent = scale.parts(load, engines, workers)
            update = sum(spent[name] for name in scale.UPDATE)
            saved = scale.seconds(load, engines, workers, False) - scale.seconds(load, engines, workers, True)
            assert saved == pytest.approx(min(update, spent["sample"]))
            assert spent["update, divided"] <= spent["sample"] + 1e-9


def test_the_page_says_what_the_model_says() -> None:
    rows = re.findall(
        r"^\| ([\d,]+) \| ([\d.]+) \| ([\d.]+) \| .* \| ([\d.]+) \| ([\d.]+) \| ",
        (ROOT / "docs/scale.md").read_text(),
        re.MULTILINE,
    )
    assert len(rows) == 4
    for engines, *shown in rows:
        for name, share, seconds in (("embedded", *shown[:2]), ("7B", *shown[2:])):
            row = scale.row(name, int(engines.replace(",", "")))
            assert float(share) == pytest.approx(row["ratio"], abs=0.0051)
            assert float(seconds) == pytest.approx(row["seconds"], rel=0.02)


def test_every_constant_has_a_source() -> None:
    for constant in scale.CONSTANTS.values():
        assert constant.unit
        assert constant.source
