"""The learning curve: what its legend says, and where it stands. Its lines are looked at in tests/stages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from addons.report.curve import draw
from flows.terminal import report


@pytest.mark.parametrize("best", [1, 4])
@pytest.mark.parametrize("lines", [{}, {"script": 0.996, "best bias on one token": 0.2}])
def test_the_curves_legend_hides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, best: int, lines: dict[str, float]
) -> None:
    """It names the best iteration, too, and stands below both panels; each panel says what it measures, on which split."""
    import matplotlib.pyplot as plt

    figures: list[Any] = []
    monkeypatch.setattr(plt, "close", figures.append)
    points = [report.Point(number, number / 5, (0.0, 1.0), number / 5, number / 6) for number in range(5)]
    draw(points, best, tmp_path / "curve.png", lines)
    [figure] = figures
    figure.canvas.draw()
    [legend] = figure.legends
    box = legend.get_window_extent()
    assert not any(box.overlaps(axis.get_tightbbox()) for axis in figure.axes)
    assert not any(axis.get_legend() or axis.texts for axis in figure.axes)
    assert figure.bbox.x0 <= box.x0
    assert box.x1 <= figure.bbox.x1
    assert f"best: iteration {best}" in [text.get_text() for text in legend.get_texts()]
    assert [axis.get_ylabel() for axis in figure.axes] == ["validation success (95 %)", "validation reward"]
