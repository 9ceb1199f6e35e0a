"""A verdict of the gate for a person: verdict.md, the note in a model card, and verdict.png."""

from __future__ import annotations

from pathlib import Path

from steps.registry.checks import Check, percent
from steps.registry.gate import PolicySummary, Verdict

CHECKS = ("| check | passed | measured | bound |", "|---|---|---:|---:|")


def table(verdict: Verdict) -> str:
    """verdict.md: what was decided, then each check, policy and slice."""
    lines = [f"# {decision(verdict)}", "", f"{verdict.reason}.", "", f"{CHECKS[0]} |", f"{CHECKS[1]}---|"]
    lines += [f"{row(check)} {check.text} |" for check in verdict.checks]
    measure = "challenger judged better" if verdict.judges else "success"
    lines += ["", f"| policy | adapter | {measure} | 95 % | turns | tokens | failed |"]
    lines.append("|---|---|---:|---|---:|---:|---:|")
    for name, side in verdict.sides.items():
        share, interval = shown(side)
        cells = (
            "| |" if share is None or interval is None else f"{share:.3f} | {interval[0]:.3f} to {interval[1]:.3f} |"
        )
        lines.append(f"| {name} | {side.adapter_hash} | {cells} {side.turns:.2f} | {side.tokens:.1f} | {side.errors} |")
    if verdict.slices:
        head = f"| slice, against the {verdict.against} | scenarios | difference | 95 % | |"
        lines += ["", head, "|---|---:|---:|---|---|"]
    for part in verdict.slices:
        low, high = part.ci95
        judged = "" if part.judged else "too small"
        lines.append(f"| {part.name} | {part.n} | {part.difference:+.3f} | {low:+.3f} to {high:+.3f} | {judged} |")
    settings = ", ".join(f"{name} {value}" for name, value in verdict.parameters.items())
    lines += ["", f"{tally(verdict)} (their ids: verdict.json). {basis(verdict)}", ""]
    lines += [f"Parameters: {settings}. Verdict {verdict.hash}."]
    return "\n".join(lines) + "\n"


def shown(side: PolicySummary) -> tuple[float | None, tuple[float, float] | None]:
    """A policy's success and its interval; without a rule how often the challenger was judged better, which is None of the
    challenger itself."""
    return (side.beaten, side.beaten_ci95) if side.success is None else (side.success, side.ci95)


def note(verdict: Verdict) -> str:
    """The verdict in a model card (addons/report/card.py): what was decided, and each check."""
    lines = [f"**{decision(verdict)}** (verdict `{verdict.hash}`): {verdict.reason}.", "", *CHECKS]
    return "\n".join([*lines, *map(row, verdict.checks), "", f"{tally(verdict)}. {basis(verdict)}"]).rstrip() + "\n"


def decision(verdict: Verdict) -> str:
    return "Promoted" if verdict.promoted else "Not promoted"


def tally(verdict: Verdict) -> str:
    won, lost = len(verdict.wins), len(verdict.losses)
    judged = ", as the judge sees it" if verdict.judges else ""
    return f"{verdict.n} scenarios: {won} won and {lost} lost against the {verdict.against}{judged}"


def basis(verdict: Verdict) -> str:
    """What the level of the interval rests on: the number of the look, and how many scenarios are independent. Nothing in a
    verdict from before these were recorded. Without a rule also who judged, and how well."""
    judges = [f" {name} against {judged.rival}, {judged.faults()}." for name, judged in (verdict.judges or {}).items()]
    by = f" No rule tells success; a judge, which may be wrong, compared attempts:{''.join(judges)}" if judges else ""
    return f"{level(verdict)}{by}"


def level(verdict: Verdict) -> str:
    """The number of the look, and how many scenarios are independent."""
    if verdict.look is None or verdict.tail is None:
        return ""
    if verdict.look:
        text = f"This is look {verdict.look} at this test split, whose interval is one of {percent(verdict.tail)}. "
        text += f"{verdict.power.sentence()} " if verdict.power else ""
    else:
        text = "The champion is shown and not judged, so this is no look at the test split. "
    if not verdict.clustered:
        return f"{text}The task does not say which scenarios are alike, so each counts as independent."
    if verdict.clusters == verdict.n:
        return f"{text}No two scenarios are alike by what the task says."
    return f"{text}The scenarios are {verdict.clusters} clusters of alike ones, the largest of {verdict.largest}."


def row(check: Check) -> str:
    """The first four cells of a check's row; what there is no number for is empty."""
    numbers = ["" if value is None else f"{value:+.3f}" for value in (check.measured, check.bound)]
    return f"| {check.name} | {'yes' if check.passed else '**no**'} | {numbers[0]} | {numbers[1]} |"


def picture(verdict: Verdict, path: Path) -> None:
    """Write a PNG with the success of every policy and the differences by slice, with their 95 % intervals. The same verdict
    gives the same bytes."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    sides, slices = verdict.sides, verdict.slices
    heights = (len(sides) + 1, len(slices) + 1)
    figure, (upper, lower) = plt.subplots(
        2, 1, figsize=(7, 1.6 + 0.35 * sum(heights)), height_ratios=heights, layout="constrained"
    )
    for place, side in enumerate(verdict.sides.values()):
        share, interval = shown(side)
        if share is not None and interval is not None:
            upper.plot(interval, (place, place), color="tab:blue")
            upper.plot(share, place, "o", color="tab:blue")
    upper.set(yticks=range(len(sides)), yticklabels=list(sides), xlim=(0, 1))
    measure = "test scenarios on which the challenger is judged better" if verdict.judges else "test success"
    upper.set_xlabel(f"{measure} (95 %, {verdict.n} scenarios)")
    if verdict.judges:
        upper.axvline(0.5, color="grey", linewidth=0.8)
    upper.set_title(decision(verdict).lower(), loc="left")
    for place, part in enumerate(slices):
        colour = "tab:blue" if part.judged else "grey"
        lower.plot(part.ci95, (place, place), color=colour)
        lower.plot(part.difference, place, "o", color=colour, fillstyle="full" if part.judged else "none")
    lower.axvline(0, color="grey", linewidth=0.8)
    lower.axvline(-float(verdict.parameters["max_slice_drop"] or 0), linestyle=":", color="tab:red")
    lower.set(yticks=range(len(slices)), yticklabels=[f"{part.name} ({part.n})" for part in slices])
    what = (
        f"judged better than {verdict.against}, minus 0.5," if verdict.judges else f"challenger minus {verdict.against}"
    )
    lower.set_xlabel(f"{what} by slice (95 %; hollow: too small to judge)")
    for axis in (upper, lower):
        axis.invert_yaxis()
        axis.grid(alpha=0.3)
    temporary = path.with_name(f".{path.name}")
    figure.savefig(temporary, dpi=120, format="png", metadata={"Software": None})
    plt.close(figure)
    temporary.replace(path)
