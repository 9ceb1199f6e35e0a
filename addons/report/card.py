"""The model card in Markdown. It depends only on the values that are passed in; what is unknown is "not recorded".

steps/registry/publish.py makes it the description of a version, flows/promote.py appends the gate's verdict, and
flows/export.py writes it beside the exported files. Left out: latency and dates, which would differ between runs with the
same inputs.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from steps.core.section import at
from steps.core.stats import counted
from steps.judging.judge import weighed
from steps.project.lock import ancestry

if TYPE_CHECKING:
    from steps.core.evaluations import Evaluation, Judged
    from steps.core.params import Params

UNKNOWN = "not recorded"
LIMIT = 5000  # characters of a version's description in MLflow's database
SLICES = 12  # rows of the table of slices
VERDICT = "\n## Verdict of the gate\n"  # the last section; it alone is added later
LINEAGE = "\n## Lineage\n"


class Recorded(NamedTuple):
    """What dvc.lock recorded of how an adapter was made."""

    params: Params | None = None  # of its last iteration
    iterations: int | None = None
    hashes: Mapping[str, str] = {}  # path -> md5: scenarios, last batch, the checkpoint that training continued from


def described(
    root: Path, adapter: Path, tags: Mapping[str, str], evaluations: Mapping[str, Evaluation], run: str | None
) -> str:
    """The model card of an adapter, from what the project's folder has of how it was made."""
    report = root / "run/scenarios/contamination.json"
    contamination = json.loads(report.read_text()) if report.is_file() else None
    return card(tags, recorded(root, adapter), evaluations, contamination, run)


def recorded(root: Path, adapter: Path) -> Recorded:
    """What dvc.lock recorded of how an adapter was made: nothing where it does not know the adapter, and no parameters where
    they are those of another version of the code."""
    from pydantic import ValidationError

    from steps.core.params import Params

    entries = ancestry(root, adapter)
    updates = sorted(name for name in entries if name.startswith("update@"))
    makers = updates or sorted(name for name in entries if name.startswith(("sft@", "start@")))
    if not makers:
        return Recorded()
    values: dict[str, Any] = {}
    for name in [*sorted(entries.keys() - set(makers)), *makers]:  # later values replace earlier ones
        values |= (entries[name].get("params") or {}).get("params.yaml") or {}
    try:
        params = Params.model_validate(values)
    except ValidationError:
        params = None
    inputs = {dep["path"]: dep.get("md5") for dep in entries[makers[-1]].get("deps", [])}
    outputs = {out["path"]: out.get("md5") for entry in entries.values() for out in entry.get("outs", [])}
    kinds = ("/checkpoint", "/trajectories.parquet")
    hashes = {path: md5 for path, md5 in inputs.items() if path.startswith("run/") and path.endswith(kinds) and md5}
    if md5 := outputs.get("run/scenarios"):
        hashes = {"run/scenarios": md5} | hashes
    return Recorded(params, len(updates), hashes)


def card(
    tags: Mapping[str, str],  # of the version: task, adapter_hash, base_model, git_commit, test_success, …
    recorded: Recorded | None = None,
    evaluations: Mapping[str, Evaluation] | None = None,  # on the test split: "base" and "test", which is the adapter's
    contamination: Mapping[str, Any] | None = None,  # run/scenarios/contamination.json
    run: str | None = None,  # the MLflow run that logged the adapter
) -> str:
    """The sections below the title."""
    recorded = recorded or Recorded()
    params, revision = recorded.params, tags.get("base_revision")
    policy, update, rollout = (params.policy, params.update, params.rollout) if params else (None, None, None)
    sizes = params and params.scenarios
    lines = [
        f"This is a LoRA adapter (PEFT) for the task `{tags.get('task', UNKNOWN)}`: an agent that calls the task's tools,",
        "trained by reinforcement with agent-flywheel. It is no model by itself: it is added to the base model below.",
    ]
    sections: dict[str, dict[str, Any]] = {
        "Model": {
            "adapter": tags.get("adapter_hash"),
            "base model": tags.get("base_model"),
            "base revision": None if revision == "None" else revision,
            "LoRA": policy and f"rank {policy.lora.rank}, alpha {policy.lora.alpha:g}, {policy.dtype}",
        },
        "Training": {
            "method": update and f"GRPO, loss {update.loss_type}, beta {update.beta:g}",
            "rewards": update and f"scaled by {update.scale_rewards or at(update, 'multi_objective_aggregation')}",
            "learning rate": update and f"{update.learning_rate:g}, {at(update, 'lr_scheduler_type') or 'constant'}",
            "iterations": recorded.iterations,
            "an iteration": rollout and f"{rollout.scenarios} scenarios, {rollout.attempts} attempts at each",
            "judges": params and weighed(params.score),
            "seed": params and params.seed,
        },
        "Data": {
            "scenarios, from the seed": sizes and f"{sizes.train} training, {sizes.val} validation, {sizes.test} test",
            "contamination check": checked(contamination),
            **{f"DVC md5 of {path}": md5 for path, md5 in recorded.hashes.items()},
            **({} if recorded.hashes else {"DVC md5 of scenarios and trajectories": None}),
        },
    }
    for title, rows in sections.items():
        lines += table(title, rows)
    lines += evaluated(tags, evaluations or {})
    lines += table(
        LINEAGE.strip("# \n"),
        {
            "git commit": tags.get("git_commit"),
            "changes that were not committed": {"true": "yes", "false": "no"}.get(tags.get("git_dirty", "")),
            "digest of dvc.lock's entries": tags.get("dvc_lock"),
            "MLflow run": run,
        },
    )
    subject = "Being judged better" if "test_judged_share" in tags else "Success"
    lines += [
        "",
        "## Limits",
        "",
        f"{subject} is that on the task's own scenarios, generated from seeds: it says nothing of other data, users or "
        "tools.",
        "The agent was rewarded by the judges above, and may have learnt what they like beside what was meant. Calls are",
        "written as the base model's chat template writes them. It was not tested for harm: tools must guard themselves.",
    ]
    return fit("\n".join(lines) + "\n")


def table(title: str, rows: Mapping[str, Any]) -> list[str]:
    """The lines of a section that is a table of names and values."""
    lines = [f"| {name} | {UNKNOWN if value is None or value == '' else cell(value)} |" for name, value in rows.items()]
    return ["", f"## {title}", "", "| | |", "|---|---|", *lines]


def cell(value: Any) -> str:
    return " ".join(str(value).split()).replace("|", "\\|")


def checked(report: Mapping[str, Any] | None) -> str | None:
    """The contamination report in a few words; None where there is none."""
    if not report or report.get("passed") is None:
        return None
    pairs = sum((report.get("found") or {}).values())
    return f"{'passed' if report['passed'] else 'NOT passed'}, {pairs} pairs too much alike"


def judged_better(tags: Mapping[str, str], judged: Judged | None) -> list[str]:
    """The section on a version of a task without a rule."""
    share, interval = (parsed(tags.get(f"test_judged_{key}")) for key in ("share", "ci95"))
    rows = {
        "judged better than the base policy": f"on {number(share)} of the scenarios",
        "95 % interval": number(interval),
        "scenarios": tested(parsed(tags.get("test_n")), parsed(tags.get("test_clusters"))),
        "judge": tags.get("test_judge"),
    }
    if judged is not None:
        rows["what is known of it"] = judged.faults()
    return [
        *table("Evaluation", rows),
        "",
        "The task has no rule that tells success. The judge is a model, and may be wrong: it compared this adapter's",
        "attempts on the test split with the base policy's, scenario by scenario and in both orders. Ties count half.",
    ]


def evaluated(tags: Mapping[str, str], evaluations: Mapping[str, Evaluation]) -> list[str]:
    """The base policy and the adapter side by side, from the evaluations or, without them, from the version's tags."""
    judged = evaluations["test"].judged if "test" in evaluations else None
    if judged is not None or "test_judged_share" in tags:
        return judged_better(tags, judged)
    lines = ["", "## Evaluation", "", "| test split | success | 95 % interval | reward | turns | tokens | scenarios |"]
    lines.append("|---|---:|---|---:|---:|---:|---:|")
    for who, prefix in (("base policy", "base"), ("this adapter", "test")):
        summary = evaluations.get(prefix)
        keys = ("success", "ci95", "reward", "turns", "tokens", "n", "clusters")
        values = [getattr(summary, key) if summary else parsed(tags.get(f"{prefix}_{key}")) for key in keys]
        cells = [*map(number, values[:-2]), tested(*values[-2:])]
        lines.append(f"| {who} | {' | '.join(cells)} |")
    slices = {prefix: summary.slices for prefix, summary in evaluations.items()}
    names = sorted(set().union(*slices.values()))
    if names:
        lines += ["", "| slice, success | base policy | this adapter |", "|---|---:|---:|"]
        for name in names[:SLICES]:
            cells = [number(slices.get(prefix, {}).get(name)) for prefix in ("base", "test")]
            lines.append(f"| {cell(name)} | {' | '.join(cells)} |")
        if len(names) > SLICES:
            lines.append(f"| {len(names) - SLICES} more | | |")
    return lines


def tested(n: Any, clusters: Any) -> str:
    """The scenarios that an interval rests on, and the groups of alike ones."""
    return number(n) if not isinstance(n, int) else counted(n, clusters if isinstance(clusters, int) else None)


def parsed(tag: str | None) -> Any:
    """The value of a tag, which str() wrote; the tag itself where it is no Python literal."""
    try:
        return None if tag is None else ast.literal_eval(tag)
    except (ValueError, SyntaxError):
        return tag


def number(value: Any) -> str:
    if value is None:
        return UNKNOWN
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, tuple | list):
        return " to ".join(map(number, value))
    return cell(value)


def with_verdict(text: str, verdict: str) -> str:
    """A description with the gate's verdict as its last section, which replaces that of an earlier verdict."""
    section = fit(VERDICT + "\n" + verdict.strip() + "\n", LIMIT // 2)
    return fit(text.partition(VERDICT)[0], LIMIT - len(section)) + section


def fit(text: str, limit: int = LIMIT) -> str:
    """The text; its last lines are replaced by a note where it has more than `limit` characters."""
    if len(text) <= limit:
        return text
    note = f"\n(Shortened: MLflow takes {LIMIT:,} characters.)\n"
    return text[: limit - len(note)].rpartition("\n")[0] + note


def readme(title: str, tags: Mapping[str, str], text: str, merged: bool = False) -> str:
    """A card as the file README.md that model hubs read: metadata in YAML, the title and the sections."""
    head: dict[str, Any] = {"base_model": tags.get("base_model", UNKNOWN), "tags": ["agent", "grpo", "lora"]}
    head |= {} if merged else {"library_name": "peft"}
    lines = ["---", *(f"{key}: {json.dumps(value)}" for key, value in head.items()), "---", "", f"# {title}", ""]
    if merged:
        lines += ["The files here are that adapter merged into its base model: whole weights, which need no PEFT.", ""]
    return "\n".join(lines) + "\n" + text


def is_card(text: str | None) -> bool:
    """Whether a version's description is a model card. Those of older versions are one sentence."""
    return LINEAGE in (text or "")
