"""Which decisions of a task were right on validation, iteration by iteration."""

from __future__ import annotations

from flows.terminal.report import RUN
from steps.analytics import skills
from steps.core.evaluations import Evaluation
from steps.project.chain import iteration_name

COLUMNS = 13  # of the table: the base policy and iterations


def table(iterations: int) -> list[str]:
    """Which decisions were right on validation, in % by iteration: which skill moved when, and what a fall means.
    Empty where the task has none."""
    paths = [RUN / iteration_name(number) / "evaluation" / "summary.json" for number in range(iterations + 1)]
    if not all(path.exists() for path in paths):
        return []  # the curve and the summary speak of them
    evaluations = [Evaluation.model_validate_json(path.read_text()) for path in paths]
    kinds = list(dict.fromkeys(kind for evaluation in evaluations for kind in evaluation.decisions))
    if not kinds or not iterations:
        return []
    most = min(iterations, COLUMNS - 1)
    shown = [round(place * iterations / most) for place in range(most + 1)]
    rows = [f"{'right decisions, %':>20}{'base':>6}" + "".join(f"{number:>5}" for number in shown[1:])]
    for kind in kinds:
        counts = [evaluations[number].decisions.get(kind, (0, 0)) for number in shown]
        shares = [f"{100 * right / made:.0f}" if made else "-" for right, made in counts]
        rows.append(f"{kind:>20}{shares[0]:>6}" + "".join(f"{share:>5}" for share in shares[1:]))
    return [*rows, *skills.falls(dict(zip(map(str, range(iterations + 1)), evaluations, strict=True)))]
