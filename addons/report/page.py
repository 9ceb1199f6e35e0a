"""run/report.html: the whole run on one page that can be sent on. It holds its own style and picture, and no script.

    from addons.report import page
    page.write(params, summary)  # at the end of a run, beside run/summary.json

It reads the stages' outputs, and is not one itself: it has the times of this run. What an agent, a judge or a setting says
is escaped by the template (report.html, here) and masked (steps/core/masking.py). Left out: single turns with their tokens,
which `make view` shows.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from addons.report.decisions import table as table
from flows.terminal import report
from flows.terminal.report import RUN
from steps.core.evaluations import Evaluation, Judged
from steps.core.files import write_text
from steps.core.masking import masked
from steps.core.section import at
from steps.core.stats import counted
from steps.project import chain
from steps.project.chain import BASE

if TYPE_CHECKING:
    from environments.base import Env
    from steps.analytics.changes import Change, Changes
    from steps.core.params import Params

REPORT = RUN / "report.html"
TEMPLATE = "report.html"
SHOWN = 3  # scenarios of each kind
WIDTH = 200  # characters of a line of a transcript
LINE = 100  # characters of one in the terminal
NEXT = {str(REPORT): "the run on one page for a browser, which can be sent on"}


def write(params: Params, summary: dict[str, Any]) -> Path:
    """Write the page of the run that `summary` sums up (run/summary.json); its path. UserError where a file is missing."""
    import jinja2

    name = report.tested(summary)
    content = {
        "task": params.task,
        "policies": policies(summary),
        "judged": judged(summary),
        "skills": skills(name),
        "scenarios": scenarios(params, name),
        "decision": decision(summary),
        "tripwires": summary.get("tripwires", {}),
        "stages": stages(summary),
        "cost": cost(params, summary),
        "lineage": lineage(params, name),
        "settings": settings(params.model_dump(mode="json", by_alias=True, exclude_none=True)),
        "name": name,
    }
    curve = RUN / "learning_curve.png"
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    template = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined).get_template(
        TEMPLATE
    )
    picture = base64.b64encode(curve.read_bytes()).decode() if curve.exists() else ""
    write_text(REPORT, template.render(masked(content), picture=picture))
    return REPORT


def story(summary: dict[str, Any]) -> tuple[list[str], str]:
    """(a test scenario before and after, as lines for the terminal; its id where the trained policy alone solves it)."""
    import environments
    from steps.analytics.changes import changes

    changed = changes(RUN, report.tested(summary))
    scenario = changed.fixed[0].scenario.id if changed.fixed else ""
    return before_and_after(environments.load(summary["task"]), changed), scenario


def before_and_after(env: type[Env], changed: Changes) -> list[str]:
    """A test scenario that the base policy fails and the trained one solves, with a few lines of what each did."""
    from steps.analytics.changes import question

    others = f"{len(changed.broken)} the other way round"
    if not changed.fixed:
        return [f"No test scenario is solved by the trained policy alone ({others})."]
    change, lead = changed.fixed[0], " " * 10
    lines = [f"One of {len(changed.fixed)} test scenarios that the trained policy alone solves ({others}):"]
    lines.append(f"{'question':>8}  {question(change.scenario, LINE)}")
    for who, side in (("base", change.before), ("trained", change.after)):
        first, *more = side.lines(env, change.scenario, LINE)
        lines += [f"{who:>8}  {first}", *(lead + line for line in more)]
    return lines


def policies(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """The policies with their success on the test split; none where a judge compares them."""
    names = {"base": "base", "begun": "before the iterations", "trained": "trained"}
    rows = [(words, summary[key]) for key, words in names.items() if key in summary]
    return [
        {
            "who": who,
            **{key: result[key] for key in ("success", "ci95")},
            "counted": counted(result["n"], result.get("clusters")),
            "sampled": result.get("sampled_success"),
        }
        for who, result in rows
        if result.get("success") is not None
    ]


def judged(summary: dict[str, Any]) -> str:
    """What a judge finds on the test split, in words; empty where none was asked."""
    result = summary["trained"].get("judged")
    return Judged.model_validate(result).sentence(summary["trained"]["n"]) if result else ""


def skills(name: str) -> list[dict[str, Any]]:
    """Kinds of decisions with the share that was right on the test split, in %, by the base policy and the trained one."""
    base, trained = (
        Evaluation.model_validate_json((RUN / folder / "test/summary.json").read_text()).decisions
        for folder in (BASE, name)
    )
    return [
        {"kind": kind, "base": percent(base.get(kind)), "trained": percent(trained.get(kind))}
        for kind in dict.fromkeys((*base, *trained))
    ]


def percent(counts: tuple[int, int] | None) -> float | None:
    """The share of right decisions, in %; None where none was made."""
    return 100 * counts[0] / counts[1] if counts and counts[1] else None


def scenarios(params: Params, name: str) -> list[dict[str, Any]]:
    """Test scenarios that only one of the two policies solves: how many of each kind, and SHOWN short transcripts."""
    import environments
    from steps.analytics.changes import changes

    env = environments.load(params.task, params.tasks)
    changed = changes(RUN, name)
    kinds = {"Solved by the trained policy alone": changed.fixed, "Solved by the base policy alone": changed.broken}
    return [
        {"title": title, "count": len(each), "shown": [transcripts(env, change) for change in each[:SHOWN]]}
        for title, each in kinds.items()
    ]


def transcripts(env: type[Env], change: Change) -> dict[str, Any]:
    """A scenario's question, and what each policy did."""
    from steps.analytics.changes import question

    sides = [
        {"who": who, "lines": side.lines(env, change.scenario, WIDTH), "is_good": side.is_good}
        for who, side in (("base", change.before), ("trained", change.after))
    ]
    return {"id": change.scenario.id, "question": question(change.scenario, 2 * WIDTH), "sides": sides}


def decision(summary: dict[str, Any]) -> str:
    """What became of the adapter in the registry, and why."""
    receipt, entry = report.read(RUN / "receipt.json"), summary["registered"]
    if not entry:
        return f"Not registered: {receipt['reason']}."
    version = f"models:/{entry['name']}/{entry['version']}" if entry["version"] else entry["name"]
    return f"Registered as {version}: {receipt['reason']}."


def stages(summary: dict[str, Any]) -> dict[str, float]:
    """Stage -> seconds of its own work in all iterations, the tests and what lies between the stages included."""
    spent: dict[str, float] = {}
    for row in summary["iterations"]:
        for stage, seconds in (row["seconds"] | {"between stages": row["overhead_seconds"] or 0.0}).items():
            spent[stage] = spent.get(stage, 0.0) + seconds
    tests = [path for path in RUN.glob("*/timings/test.json") if path.parts[-3] in (BASE, report.tested(summary))]
    return spent | {"test": sum(report.read(path)["seconds"] for path in tests)}


def cost(params: Params, summary: dict[str, Any]) -> dict[str, str]:
    """What the run took, beside the seconds of its stages."""
    folders = [RUN / chain.iteration_name(row["iteration"]) for row in summary["iterations"]]
    tokens = sum(
        values["tokens"] * values["collected"] for values in (report.read(each / "metrics.json") for each in folders)
    )
    judges = [each / "judge.json" for each in folders if (each / "judge.json").exists()]
    spent = report.read(judges[-1]).get("cost_so_far", 0.0) if judges else 0.0
    return {
        "iterations": str(len(folders)),
        "sampled tokens in training": f"{tokens:,.0f}",
        "cost of the judge": f"{spent:.4g}" if spent else "none",
        "wall time of the last command": f"{summary['wall_seconds']:,.0f} s",
        "processor threads": str(params.policy.threads or "all"),
    }


def lineage(params: Params, name: str) -> dict[str, str]:
    """What the result comes from: hashes of the code, the scenarios, the adapter and what it continued."""
    from steps.policy.adapter import adapter_hash
    from steps.project.git import git_state
    from steps.project.lock import read_lock

    tags, _ = git_state(Path.cwd())
    dirty = " with changes that are not committed" if tags.get("git_dirty") == "true" else ""
    outs = {
        out["path"]: out.get("md5", "") for entry in read_lock(Path.cwd()).values() for out in entry.get("outs", [])
    }
    previous = str((chain.read_chain(Path.cwd()).get("iterations") or {}).get(name, {}).get("prev", ""))
    rows = {
        "commit": f"{tags['git_commit']}{dirty}" if tags else "",
        "scenarios (DVC's md5)": outs.get("run/scenarios", ""),
        "base model": f"{params.policy.base_model} {params.policy.revision or ''}".strip(),
        "adapter": f"{adapter_hash(RUN / name / 'adapter')} (run/{name})",
        "continued from": f"{adapter_hash(RUN / previous / 'adapter')} (run/{previous})" if previous else "",
        "begun from": str(at(params, "policy.start_from") or ""),
        "seed": str(params.seed),
    }
    return {key: value for key, value in rows.items() if value}


def settings(values: dict[str, Any], before: str = "") -> dict[str, str]:
    """All settings by their full names, as params.yaml writes them."""
    rows: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, dict) and value:
            rows |= settings(value, f"{before}{key}.")
        else:
            rows[before + key] = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return rows
