"""Reads from run/ and dvc.lock what was made from what: the nodes and edges of the lineage index.

The ledger keeps them beside its `replies` in two tables, `nodes(kind, id, data)` and `edges(parent, role, child, data)`.
Both questions walk an unknown depth over things of many kinds. With two tables that is one recursive query, the same on
SQLite and PostgreSQL, with an index for each direction; a table per kind would need a join for each. The edges, with
their roles in brackets, parents first:

    run [made] adapter [sampled, or faced: the other side of its games] batch [trained] adapter; adapter [continued] adapter
    scenario [attempted] trajectory [collected] batch; trajectory [scored] rewards [trained] adapter
    rule, criteria: judge [judged] rewards. A model: judge [judged] judgement [counted, or beside: weight 0] rewards
    scenario [compared] judgement; reply [answered, or probed: a test of the judge itself] judgement
    conversation, or trajectory of another run [used] dataset [trained] adapter: start/demonstrations.jsonl, by the stage sft
    adapter [measured] metrics; adapter, scenario [evaluated] evaluation; adapter [decided] receipt
    adapter [challenged, or opposed: champion, base], evaluation [weighed] verdict
    conversation [used] dataset [trained] adapter; conversation [became] scenario (addons/lineage/ingested.py)

Ids are hashes of the content, or contain one (trajectories and rewards: <batch>/<name>; judgements: <file>/<name>), so rows
never change: indexing the same files again adds nothing, and another run adds rows. An edge is added where dvc.lock records
it and the files are the recorded ones; everything else is listed as left out. The git commit of a run is the one at its
first indexing, which no file of the run holds; a rebuild keeps it.

A verdict comes from run/promote/<adapter>/verdict.json, or from the table of decisions (steps/registry/decisions.py), which
keeps it when that folder is gone. A run that starts from an adapter elsewhere has that adapter's own node as its first one,
so that a walk back goes on in the run that made it; the run's data say by which address it came. Left out: trajectories of
evaluations; what else run/ holds beside the chain; versions and aliases, which MLflow keeps and is asked for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from addons.lineage.entries import code_judge, describe, source_of, unreadable
from addons.lineage.ingested import ingested
from addons.lineage.tables import PLAYERS, NodeKey, Rows, plain
from steps.core.errors import UserError
from steps.core.files import json_lines
from steps.core.parquet import read_columns
from steps.core.records import Judgement
from steps.policy.adapter import adapter_hash
from steps.project import chain
from steps.project.lock import SHORT, file_md5, folder_md5, lineage, read_lock, run_key
from steps.registry import gate


class SampledBatch(NamedTuple):
    """The trajectories of one iteration."""

    key: NodeKey
    adapters: set[str]  # that sampled them
    names: set[str]  # ids of the trajectories


class Reader:
    """Reads the run in a project's folder. `runs`: those already indexed, whose git commit is kept."""

    def __init__(self, root: Path, runs: Mapping[str, dict[str, Any]]) -> None:
        self.root, self.runs, self.left_out = root, runs, list[str]()
        self.chain, self.lock = chain.read_chain(root), read_lock(root)
        self.outputs = {out["path"]: out.get("md5") for entry in self.lock.values() for out in entry.get("outs", [])}
        self.origins = chain.origins(root)
        self.run = run_key(self.lock)
        if self.run is None:
            self.left_out.append("dvc.lock has no whole first iteration: the run cannot be identified yet")

    def parts(self, iterations: Sequence[str] | None) -> Iterator[Rows]:
        """The rows of the run, of each iteration (000: the first adapter), of the receipt, and of verdicts."""
        yield self.start(iterations is None or "000" in iterations)
        chained = self.chain.get("iterations") or {}
        whole = ["000", *self.origins, *chained]
        if unknown := sorted(set(iterations or ()) - set(whole)):
            raise UserError(f"chain.yaml has no iteration {', '.join(unknown)}; it has {', '.join(whole)}")
        for number in iterations if iterations is not None else whole:
            yield self.iteration(number, chained[number]["prev"] if number in chained else None)
        if iterations is None:
            for folder in sorted((self.root / "run").glob("[0-9][0-9][0-9]")):
                if folder.name not in {"000", *chained}:
                    self.left_out.append(f"run/{folder.name} is not in chain.yaml")
        yield self.receipt()
        if iterations is None or "000" in iterations:
            yield ingested(self.root, self.lock)
        if iterations is None:
            for file in sorted((self.root / "run/promote").glob("*/verdict.json")):
                yield self.verdict(file.parent.relative_to(self.root).as_posix())

    def start(self, scenarios: bool) -> Rows:
        """The run and its scenarios, which are the same in every iteration."""
        rows = Rows()
        if scenarios and self.md5("run/scenarios"):
            for path in sorted((self.root / "run/scenarios").glob("*.parquet")):
                for row in read_columns(path, ["id", "task", "split"]).to_pylist():
                    rows.node(("scenario", row["id"]), task=row["task"], split=row["split"])
        if self.run is not None:
            rows.node(("run", self.run), **(self.runs.get(self.run) or describe(self.root, self.lock)))
        return rows

    def iteration(self, number: str, previous: str | None) -> Rows:
        """An iteration's adapter, what it was trained on, and its evaluations. `previous`: None for 000, start and sft."""
        rows = Rows()
        first = f"{number}@{number}" if number in self.origins else "initialise"
        adapter = self.adapter(rows, number, first if previous is None else f"update@{number}")
        if adapter and number == chain.SFT:
            self.supervised(rows, adapter)
        if previous is not None:
            batch = self.batch(rows, number)
            rewards = self.rewards(rows, number, batch) if batch else None
            if adapter and batch and rewards:
                self.update(rows, number, previous, adapter, batch, rewards)
        if number in (self.chain.get("evaluated") or ()):
            self.evaluation(rows, f"run/{number}/evaluation")
        if number in (self.chain.get("tested") or {}).values():
            self.evaluation(rows, f"run/{number}/test")
        return rows

    def adapter(self, rows: Rows, number: str, maker: str) -> NodeKey | None:
        path = f"run/{number}/adapter"
        if not (md5 := self.md5(path)):
            return None
        try:
            name = adapter_hash(self.root / path)
        except FileNotFoundError as problem:
            missing = f"{problem.filename} is missing in {path}"
            raise UserError(f"{missing}; `.venv/bin/dvc checkout` brings the adapter back") from None
        state = self.state(number)
        if state is not None and state != name:
            self.left_out.append(f"{path} is {name}, but run/{number}/checkpoint is of adapter {state}")
            return None
        adapter = rows.node(("adapter", name))
        if self.run is not None and maker in self.lock:
            recorded = lineage(self.root, self.root / path)
            rows.edge(("run", self.run), "made", adapter, iteration=number, md5=md5, **recorded)
        return adapter

    def supervised(self, rows: Rows, adapter: NodeKey) -> None:
        """Link the adapter of the stage sft to its demonstrations, by their sources, where dvc.lock and the files agree."""
        path, entry = "start/demonstrations.jsonl", self.lock.get("sft@sft", {})
        read = {dep["path"]: dep.get("md5") for dep in entry.get("deps", [])}
        if not (md5 := self.md5(path)) or read.get(path) != md5:
            self.left_out.append(
                f"{path} is not what sft@sft read: run/sft/adapter is not linked to its demonstrations"
            )
            return
        key = rows.node(("dataset", md5), path=path)
        rows.edge(key, "trained", adapter)
        for line in json_lines(self.root / path):
            source = source_of(line)
            is_ours = re.fullmatch(rf"[0-9a-f]{{{SHORT}}}/.+", source)  # a trajectory of another run
            rows.edge(("trajectory" if is_ours else "conversation", source), "used", key)
        if (state := self.state(self.chain["warmed"][chain.SFT]["prev"])) is not None:
            rows.edge(("adapter", state), "continued", adapter)

    def batch(self, rows: Rows, number: str) -> SampledBatch | None:
        path = f"run/{number}/trajectories.parquet"
        if not (md5 := self.md5(path)):
            return None
        records = read_columns(self.root / path, ["id", "scenario_id", "adapter_hash", "stop_reason"]).to_pylist()
        adapters = {record["adapter_hash"] for record in records}
        batch = SampledBatch(("batch", md5), adapters, {record["id"] for record in records})
        rows.node(batch.key, trajectories=len(records))
        for record in records:
            key = rows.node(trajectory(md5, record["id"]), stop_reason=record["stop_reason"])
            rows.edge(("scenario", record["scenario_id"]), "attempted", key)
            rows.edge(key, "collected", batch.key)
        for name in batch.adapters:
            rows.edge(("adapter", name), "sampled", batch.key)
        drawn = f"run/{number}/drawn.json"
        listed = self.json(drawn) if (self.root / drawn).exists() and self.md5(drawn) else {}
        if opponent := (listed.get("opponent") or {}).get("adapter"):
            rows.edge(("adapter", opponent), "faced", batch.key)
        return batch

    def rewards(self, rows: Rows, number: str, batch: SampledBatch) -> NodeKey | None:
        path = f"run/{number}/rewards.parquet"
        if not (md5 := self.md5(path)):
            return None
        records = read_columns(self.root / path, ["trajectory_id", "name", "score", "success"]).to_pylist()
        if {record["trajectory_id"] for record in records} != batch.names:
            self.left_out.append(f"{path} is of other trajectories than run/{number}/trajectories.parquet")
            return None
        counted = sorted({name for record in records for name in record["name"].split("+")})
        # Two batches may have equal files of rewards: trajectories have the same names in every batch.
        rewards = rows.node(("rewards", f"{batch.key[1][:SHORT]}/{md5}"), counted=counted)
        for record in records:
            score = {name: record[name] for name in ("name", "score", "success")}
            rows.edge(trajectory(batch.key[1], record["trajectory_id"]), "scored", rewards, **plain(score))
        for name in [name for name in counted if name != "ruler"]:
            if f"score@{number}" in self.lock:
                judge = rows.node(("judge", code_judge(name, self.lock[f"score@{number}"])), name=name)
                rows.edge(judge, "judged", rewards)
            else:
                self.left_out.append(f"dvc.lock has no score@{number}: its judge {name} is not linked to {path}")
        self.judgements(rows, number, rewards, "counted" if "ruler" in counted else "beside")
        return rewards

    def judgements(self, rows: Rows, number: str, rewards: NodeKey, role: str) -> None:
        """What a model judged, and the replies in the ledger that it rests on."""
        path = f"run/{number}/judgements.jsonl"
        if not (md5 := self.md5(path)):
            return
        for place, line in enumerate(json_lines(self.root / path), 1):
            try:
                judgement = Judgement.model_validate_json(line)
            except ValidationError as problem:
                raise unreadable(f"{path}, line {place}", "judgement", problem.errors()[0]["msg"]) from None
            judge = rows.node(("judge", judgement.judge), name="ruler")
            key = ("judgement", f"{md5[:SHORT]}/{judgement.scenario_id}")
            rows.node(key, problem=judgement.problem, cost=judgement.cost)
            rows.edge(judge, "judged", key)
            rows.edge(("scenario", judgement.scenario_id), "compared", key)
            rows.edge(key, role, rewards)
            for reply in [reply for order in judgement.orders for reply in order.calls]:
                rows.edge(("reply", reply), "answered", key)
            for reply in judgement.probe.calls if judgement.probe else ():
                rows.edge(("reply", reply), "probed", key)

    def update(
        self, rows: Rows, number: str, previous: str, adapter: NodeKey, batch: SampledBatch, rewards: NodeKey
    ) -> None:
        """Link an adapter to what it was trained on, where dvc.lock and the files agree."""
        unlinked = f"run/{number}/adapter is not linked to its batch"
        name = f"update@{number}"
        read = {dep["path"]: dep.get("md5") for dep in self.lock.get(name, {}).get("deps", [])}
        now = {
            f"run/{number}/trajectories.parquet": batch.key[1],
            f"run/{number}/rewards.parquet": rewards[1].rpartition("/")[2],
            f"run/{previous}/checkpoint": self.outputs.get(f"run/{previous}/checkpoint"),
        }
        policy = chain.sampled_with(self.root, number)
        if policy != previous:
            now[f"run/{policy}/adapter"] = self.outputs.get(f"run/{policy}/adapter")
        sampler = self.state(policy) or next(iter(batch.adapters), "")
        if name not in self.lock:
            self.left_out.append(f"dvc.lock has no {name}: {unlinked}")
        elif changed := [path for path, md5 in now.items() if read.get(path) != md5]:
            self.left_out.append(
                f"{', '.join(changed)} changed after {name}: {unlinked} (`.venv/bin/dvc repro` trains it again)"
            )
        elif batch.adapters != {sampler}:
            sampled = ", ".join(sorted(batch.adapters)) or "nothing"
            self.left_out.append(f"batch {number} is of {sampled}, run/{policy}/checkpoint of {sampler}: {unlinked}")
        else:
            rows.edge(batch.key, "trained", adapter)
            rows.edge(rewards, "trained", adapter)
            rows.edge(("adapter", self.state(previous) or sampler), "continued", adapter)
            path = f"run/{number}/metrics.json"
            if md5 := self.md5(path):
                rows.edge(adapter, "measured", rows.node(("metrics", md5), **plain(self.json(path))))

    def evaluation(self, rows: Rows, path: str) -> None:
        """An evaluation, linked to the adapter that its summary names."""
        if not (md5 := self.md5(path)):
            return
        summary = self.json(f"{path}/summary.json")
        try:
            adapter, data = summary["adapter_hash"], {key: summary[key] for key in ("split", "success", "ci95", "n")}
            data |= {key: summary[key] for key in ("clusters",) if key in summary}
            if judged := summary.get("judged"):
                data |= {"judged": {key: judged[key] for key in ("share", "ci95", "rival", "rival_hash", "judge")}}
        except KeyError as problem:
            raise unreadable(f"{path}/summary.json", "evaluation", f"no {problem}") from None
        evaluation = rows.node(("evaluation", md5), **plain(data))
        if adapter not in PLAYERS:
            rows.edge(("adapter", adapter), "evaluated", evaluation)
        if (self.root / path / "trajectories.parquet").exists():
            for row in read_columns(self.root / f"{path}/trajectories.parquet", ["scenario_id"]).to_pylist():
                rows.edge(("scenario", row["scenario_id"]), "evaluated", evaluation)
        else:
            self.left_out.append(f"{path}/trajectories.parquet is missing: its scenarios are not linked")

    def receipt(self) -> Rows:
        rows, path = Rows(), "run/receipt.json"
        if ((self.root / path).exists() or path in self.outputs) and (md5 := self.md5(path)):
            receipt = self.json(path)
            data = {key: receipt.get(key) for key in ("name", "registered", "reason")}
            rows.edge(("adapter", str(receipt.get("adapter_hash"))), "decided", rows.node(("receipt", md5), **data))
        return rows

    def verdict(self, path: str) -> Rows:
        """A verdict, and those of its own evaluations whose files have not changed since."""
        weighed, rows = gate.evidence(self.root / path, path), Rows()
        if not weighed["evaluations"]:
            self.left_out.append(f"{path}/evaluations.json is missing: the verdict is not linked to its evaluations")
        for evaluation in weighed["evaluations"].values():
            if evaluation["path"].startswith(f"{path}/") and (self.root / evaluation["path"]).exists():
                self.evaluation(own := Rows(), evaluation["path"])
                if ("evaluation", evaluation["md5"]) in own.nodes:
                    rows.nodes |= own.nodes
                    rows.edges |= own.edges
        add_evidence(rows, weighed)
        return rows

    def md5(self, path: str) -> str | None:
        """The md5 that DVC gives a file or folder; None, with a reason in `left_out`, where dvc.lock recorded another."""
        full = self.root / path
        if not full.exists():
            self.left_out.append(f"{path} is missing")
            return None
        md5 = folder_md5(full) if full.is_dir() else file_md5(full)
        if self.outputs.get(path, md5) != md5:
            self.left_out.append(
                f"{path} is not what dvc.lock recorded (`.venv/bin/dvc repro` or `.venv/bin/dvc checkout` repairs it)"
            )
            return None
        return md5

    def state(self, number: str) -> str | None:
        """The hash of the adapter that an iteration's checkpoint belongs to."""
        path = f"run/{number}/checkpoint/state.json"
        return self.json(path).get("adapter") if (self.root / path).exists() else None

    def json(self, path: str) -> dict[str, Any]:
        try:
            value = json.loads((self.root / path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as problem:
            raise unreadable(path, "JSON", str(problem)) from None
        if not isinstance(value, dict):
            raise unreadable(path, "JSON object", f"it is {type(value).__name__}")
        return value


def add_evidence(rows: Rows, evidence: Mapping[str, Any]) -> None:
    """Add a verdict, the adapters that it judged, and the evaluations that it weighed."""
    verdict = rows.node(("verdict", evidence["hash"]), **plain(evidence["verdict"]))
    for side, shown in evidence["verdict"]["sides"].items():
        if shown["adapter_hash"] not in PLAYERS:
            role = "challenged" if side == "challenger" else "opposed"
            rows.edge(("adapter", shown["adapter_hash"]), role, verdict, side=side)
    for side, evaluation in evidence["evaluations"].items():
        rows.edge(("evaluation", evaluation["md5"]), "weighed", verdict, side=side)


def trajectory(batch: str, name: str) -> NodeKey:
    """The key of a trajectory, whose name is unique only within its batch."""
    return ("trajectory", f"{batch[:SHORT]}/{name}")
