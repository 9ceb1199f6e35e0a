"""What steps/analytics/analysis.py found, shown: tables for a terminal, and one picture. Decides and measures nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from steps.analytics.analysis import Analysis, Line
from steps.training.fates import FATES


def tables(found: Analysis) -> list[Any]:
    """What a person reads in a terminal: rich's tables."""
    from rich import box
    from rich.table import Table

    from steps.analytics.transcripts import printable

    def table(title: str, *columns: str, words: int = 1) -> Any:
        made = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
        for place, name in enumerate(columns):
            made.add_column(printable(name), justify="left" if place < words else "right", overflow="fold")
        return made

    everything = [*found.lines, *([found.total] if len(found.lines) > 1 else [])]
    splits = ", ".join(found.splits)
    columns = ("n", "success (95 %)", "reward", "turns", "tokens 50/90/99 %", "s/turn 50/90/99 %", "failed", "unscored")
    did = table(f"{found.source}: {splits}", ", ".join(found.by), *columns)
    acts = table("actions: share of all", ", ".join(found.by), *(names := list(found.total.actions)))
    for one in everything:
        group = printable(", ".join(one.group))
        did.add_row(group, str(one.n), *_cells(one), str(one.failed), str(one.unscored))
        total = sum(one.actions.values())
        acts.add_row(group, *(f"{one.actions.get(name, 0) / total:.1%}" if total else "" for name in names))
    shown = [did, acts]
    if found.patterns:
        errors = table("errors", "where", "message", "times", "episodes", words=2)
        for pattern in found.patterns:
            errors.add_row(pattern.where, printable(pattern.text), str(pattern.count), str(pattern.episodes))
        shown.append(errors)
    if found.waste:
        shown.append(
            table("sampled tokens: what became of them", "iteration", "tokens", *FATES, "µs/gradient token", "judge")
        )
        for number, one_waste in found.waste.items():
            each, cost = one_waste.seconds_per_gradient_token, one_waste.judge_cost
            cells = [f"{one_waste.shares[fate]:.1%}" for fate in FATES]
            cells += ["" if each is None else f"{1e6 * each:.0f}", "" if cost is None else f"{cost:.4g}"]
            shown[-1].add_row(number, str(one_waste.sampled), *cells)
    return shown


def _cells(one: Line) -> list[str]:
    """From success to latency."""
    success = (
        "" if one.success is None or one.ci95 is None else "{:.3f} [{:.3f}, {:.3f}]".format(one.success, *one.ci95)
    )
    latency = "not recorded" if one.latency is None else " / ".join(f"{value:.2f}" for _, value in one.latency)
    tokens = " / ".join(f"{value:.0f}" for _, value in one.tokens)
    return [success, "" if one.reward is None else f"{one.reward:.3f}", f"{one.turns:.2f}", tokens, latency]


def picture(found: Analysis, path: Path) -> None:
    """One PNG: success, reward and turns by group, actions stacked, error patterns. Same analysis, same bytes."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from steps.analytics.transcripts import printable

    names, places = [printable(", ".join(one.group)) for one in found.lines], range(len(found.lines))
    rows = 4 + bool(found.patterns)
    ratios = (2, 1, 1, 2, 0.4 + 0.25 * len(found.patterns))[:rows]
    width = max(7.0, min(20.0, 2 + 0.45 * len(names)))
    figure, axes = plt.subplots(rows, 1, figsize=(width, 1.2 * sum(ratios)), height_ratios=ratios, layout="constrained")
    style = "o-" if found.by == ("iteration",) else "o"  # a line only where there is an order
    known = [(place, one) for place, one in zip(places, found.lines, strict=True) if one.success is not None]
    for place, one in known:
        axes[0].plot((place, place), one.ci95, color="tab:blue", alpha=0.5)
    axes[0].plot([place for place, _ in known], [one.success for _, one in known], style, color="tab:blue")
    axes[0].set(ylabel="success (95 %)", ylim=(0, 1))
    scored = [(place, one.reward) for place, one in zip(places, found.lines, strict=True) if one.reward is not None]
    axes[1].plot([place for place, _ in scored], [reward for _, reward in scored], style, color="tab:green")
    axes[1].set(ylabel="reward")
    axes[2].plot(places, [one.turns for one in found.lines], style, color="tab:orange")
    axes[2].set(ylabel="turns")
    below = [0.0] * len(names)
    totals = [max(1, sum(one.actions.values())) for one in found.lines]
    for number, action in enumerate(found.total.actions):
        heights = [one.actions.get(action, 0) / total for one, total in zip(found.lines, totals, strict=True)]
        axes[3].bar(places, heights, bottom=below, label=printable(action), color=f"C{number % 10}", width=0.7)
        below = [low + height for low, height in zip(below, heights, strict=True)]
    axes[3].set(ylabel="actions", ylim=(0, 1))
    axes[3].legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=3, fontsize="small")
    for axis in axes[:4]:
        axis.set_xticks(list(places), names, rotation=0 if len(names) < 9 else 90)
        axis.grid(alpha=0.3)
    axes[0].set_title(f"{found.source}: {', '.join(found.splits)}, by {', '.join(found.by)}", loc="left")
    if found.patterns:
        axes[4].barh(
            range(len(found.patterns)), [pattern.count for pattern in found.patterns], color="tab:red", alpha=0.4
        )
        for place, pattern in enumerate(found.patterns):
            text = printable(pattern.text)[:90].replace("$", "\\$")  # $ begins a formula
            axes[4].annotate(
                f"{pattern.count} × {text}",
                (0, place),
                (4, 0),
                textcoords="offset points",
                va="center",
                fontsize="small",
            )
        axes[4].set(xlabel="errors", yticks=())
        axes[4].invert_yaxis()
    temporary = path.with_name(f".{path.name}")
    figure.savefig(temporary, dpi=120, format="png", metadata={"Software": None})
    plt.close(figure)
    temporary.replace(path)
