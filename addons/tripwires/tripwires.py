"""Tripwires: what a run does wrong without an error, read from what an iteration's stages wrote.

    python -m addons.tripwires            # all iterations of run/
    python -m addons.tripwires other/run

Each tripwire is a plain comparison with a bound that healthy runs keep far from; the sentence says what was seen and what
to do. flows.train looks after every iteration, says what it sees in the terminal, in MLflow and at the end, and with
`train.tripwires: stop` ends the run. Nothing is written, and the same files give the same findings. Left out: what ends a
stage by itself, such as logprobs of another policy, and a success that falls by a little while the reward rises
(addons/tripwires/watch.py tests that).
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from addons.tripwires.iteration import Iteration, evaluation, metrics
from environments.base import Scenario, is_call_error, is_error
from steps.core.errors import UserError
from steps.core.files import signatures
from steps.core.records import Trajectory, read_records
from steps.judging.rule import unusable_line
from steps.policy.adapter import adapter_hash
from steps.project import chain

FLAT = 0.9  # share of the groups whose attempts all earned the same
FEW = 0.1  # share of the episodes that may be empty, failed, set aside or unscored
REPEATED = 0.5  # share of the episodes with the very same error
DRIFT = 10.0, 1e-3  # times the median of earlier iterations, and nats: the logprobs of sampler and trainer
FORCED = 0.95  # share of the tokens of trajectories that are trained on at which a grammar left no choice
GROWTH = 3.0  # times the median of earlier iterations: sampled tokens or turns of an episode
CUT = 0.5  # share of the episodes that were cut off, where it was less than half of that before
CERTAIN = 0.05  # entropy as a share of the first iteration's, below which a policy that fails has stopped exploring
SURE_OF = 0.5  # a success above which a policy may be sure of itself


class Finding(NamedTuple):
    name: str
    text: str  # what was seen, and what to do


# A tripwire yields a sentence where it sees something; the first one counts.


def no_variance(it: Iteration) -> Iterator[str]:
    flat, groups = it.metrics["zero_variance_groups"], it.metrics["groups"]
    if groups and flat >= FLAT * groups:
        yield (
            f"in {flat} of {groups} groups all attempts earned the same, so that hardly anything is learnt from. Take "
            "scenarios that succeed at times, give partial credit, or raise rollout.attempts"
        )


def missing_episodes(it: Iteration) -> Iterator[str]:
    sizes = Counter(len(group) for group in it.groups.values())
    if len(sizes) > 1:
        whole = max(sizes)
        lost = sum((whole - size) * count for size, count in sizes.items())
        yield (
            f"{lost} episodes are missing: some groups have fewer attempts than {whole}. Sample again "
            "(`.venv/bin/dvc repro -f`)"
        )


def empty_episodes(it: Iteration) -> Iterator[str]:
    empty = sum(not any(turn.completion_ids for turn in each.turns) for each in it.batch)
    if empty > FEW * len(it.batch):
        yield (
            f"{empty} of {len(it.batch)} episodes hold no sampled turn: an agent that does not use the base URL which it is "
            "given, or fails before its first call, leaves such captures"
        )


def repeated_error(it: Iteration) -> Iterator[str]:
    errors = Counter(error for each in it.batch for error in errors_of(each))
    for error, count in errors.most_common(1):
        if count >= REPEATED * len(it.batch):
            yield f"{count} of {len(it.batch)} episodes have the same error: {error[:200]}. {cure(error, it.batch)}"


def cure(error: str, batch: Sequence[Trajectory]) -> str:
    """What helps against an error that many episodes have: the policy makes it, or a tool answers with it."""
    if is_call_error(error):
        return (
            "The policy makes it, and no tool has seen the call: teach it the calls first (docs/start.md), or say in the "
            "tool's docstring what it takes"
        )
    if any(each.error == error for each in batch):
        return "It ends the episode: mend the environment, or the agent, that raises it"
    return "A tool answers with it: mend the tool where the calls are right, and what it says where the policy errs"


def errors_of(trajectory: Trajectory) -> set[str]:
    """The different errors of an episode: why it failed, and those that its tools returned."""
    shown = {str(each["content"]) for turn in trajectory.turns for each in turn.observations if is_error(each)}
    return shown | ({trajectory.error} if trajectory.error else set())


def failed_episodes(it: Iteration) -> Iterator[str]:
    failed = sum(each.stop_reason == "error" for each in it.batch)
    if failed > FEW * len(it.batch):
        yield f"{failed} of {len(it.batch)} episodes failed. `make check-task NAME=…` tests a task without a model"


def quarantined(it: Iteration) -> Iterator[str]:
    count, total = it.metrics["quarantined"], it.metrics["collected"]
    if count > FEW * total:
        reasons = ", ".join(it.metrics.get("quarantine", {}))
        yield f"{count} of {total} trajectories are quarantined ({reasons}): they are not what was sampled"


def unscored(it: Iteration) -> Iterator[str]:
    failed = {each.id for each in it.batch if each.stop_reason == "error"}
    count = sum(reward.score is None and reward.trajectory_id not in failed for reward in it.rewards)
    if count > FEW * len(it.rewards):
        numbers = unusable_line([(reward.score, reward.explanation) for reward in it.rewards])
        yield numbers or (
            f"{count} of {len(it.rewards)} episodes have no score, for the reasons in {it.folder / 'judgements.jsonl'}"
        )


def judge_alike(it: Iteration) -> Iterator[str]:
    scores = [reward.score for reward in it.rewards if reward.name != "rule" and reward.score is not None]
    if len(scores) > 1 and len(set(scores)) == 1:
        yield f"the judge gave all {len(scores)} episodes the same score, {scores[0]:g}: read what it is asked and answers"


def same_attempts(it: Iteration) -> Iterator[str]:
    several = [group for group in it.groups.values() if len(group) > 1]
    equal = sum(len({spoken(each) for each in group}) == 1 for group in several)
    if several and equal >= FLAT * len(several):
        yield (
            f"in {equal} of {len(several)} groups all attempts are the same to the token: the sampler is greedy, or "
            "repeats its seed. Look at rollout.temperature, and at the server's settings"
        )


def spoken(trajectory: Trajectory) -> tuple[tuple[int, ...], ...]:
    return tuple(turn.completion_ids for turn in trajectory.turns)


def stale_sampler(it: Iteration) -> Iterator[str]:
    adapters = {each.adapter_hash for each in it.batch}
    if strange := adapters - it.adapters:
        yield (
            f"adapter {min(strange)} sampled this batch, which no earlier iteration of this run wrote: sample it again"
        )
    elif len(adapters) > 1:
        yield f"{len(adapters)} adapters sampled this batch. Restart the servers that sample, and sample it again"


def logprob_drift(it: Iteration) -> Iterator[str]:
    now, before = it.metrics.get("sampler_kl"), it.before("sampler_kl")
    times, nats = DRIFT
    if now is not None and before and now > max(nats, times * median(before)):
        yield (
            f"sampler and trainer differ by {now:.2g} nats a token, and by {median(before):.2g} before: another dtype, "
            "kernel or temperature on one of the two sides"
        )


def adapter_unchanged(it: Iteration) -> Iterator[str]:
    if it.metrics["trained"] and adapter_hash(it.folder / "adapter") in it.adapters:
        yield f"{it.metrics['trained']} trajectories were trained on, and the adapter has not changed: is the rate 0?"


def zero_gradient(it: Iteration) -> Iterator[str]:
    if it.metrics["trained"] and it.metrics.get("grad_norm", 1.0) == 0.0:
        yield f"{it.metrics['trained']} trajectories were trained on with a gradient of 0: a mask or a clip takes all of it"


def no_choice(it: Iteration) -> Iterator[str]:
    trained, without = it.metrics.get("tokens_trained"), it.metrics.get("tokens_dropped/constrained", 0)
    if trained is not None and without > FORCED * (trained + without):
        yield (
            f"of {trained + without} tokens with a signal {without} bear no loss, because the grammar of a schema or of a "
            "forced tool left no choice or is not known: look at rollout.grammar, and at what the agent asks for"
        )


def explosion(it: Iteration, name: str, words: str) -> Iterator[str]:
    now, before = it.metrics.get(name), it.before(name)
    if now is not None and before and now > GROWTH * median(before):
        yield (
            f"episodes have {now:.0f} {words} on average, and had {median(before):.0f} before: the policy rambles. "
            "A penalty for length, update.truncated_completions: penalise or a larger update.beta holds it"
        )


def truncation(it: Iteration) -> Iterator[str]:
    shares = [share_cut(metrics(folder)) for folder in it.earlier]
    if (now := share_cut(it.metrics)) >= CUT and shares and median(shares) < CUT / 2:
        yield f"{100 * now:.0f} % of the episodes were cut off, and {100 * median(shares):.0f} % before: read them"


def share_cut(values: dict[str, Any]) -> float:
    return float(values["truncated"] / max(1, values["collected"]))


def certainty(it: Iteration) -> Iterator[str]:
    now, before, success = it.metrics.get("entropy"), it.before("entropy"), it.metrics.get("success")
    if now is not None and before and success is not None and now < CERTAIN * before[0] and success < SURE_OF:
        yield (
            f"the entropy fell from {before[0]:.3g} to {now:.2g} nats a token while {100 * success:.0f} % of the episodes "
            "succeed: the policy has stopped exploring. Lower update.learning_rate, or raise update.beta"
        )


def collapse(it: Iteration) -> Iterator[str]:
    names = chain.listed(it.run) or ()
    begun = next((name for name in (chain.SFT, chain.START) if name in names), chain.BASE)
    before, now = evaluation(it.run / begun), it.evaluation
    if it.gap(it.run / begun)[2] < 0:
        whose = "the base policy's" if begun == chain.BASE else f"run/{begun}'s"
        yield f"{now.measure} on validation fell to {now.share:.3f}, below {whose} {before.share:.3f}"


def reward_hacking(it: Iteration) -> Iterator[str]:
    now, reward = it.evaluation, it.metrics["reward_mean"]
    for folder in it.earlier:
        then = evaluation(folder)
        if it.gap(folder)[2] < 0 and reward > metrics(folder)["reward_mean"]:
            yield (
                f"since iteration {int(folder.name)} {now.measure} on validation fell from {then.share:.3f} to "
                f"{now.share:.3f} while the reward of training rose: it pays for something else. Read the transcripts"
            )


def other_adapter(it: Iteration) -> Iterator[str]:
    if (own := adapter_hash(it.folder / "adapter")) != it.evaluation.adapter_hash:
        yield (
            f"the validation is of adapter {it.evaluation.adapter_hash}, and not of this iteration's {own}: "
            "`.venv/bin/dvc repro`"
        )


def trained_on_held_out(it: Iteration) -> Iterator[str]:
    held_out = {
        scenario.id: split
        for split in ("val", "test")
        for scenario in read_records(Scenario, it.run / f"scenarios/{split}.parquet")
    }
    if leaked := sorted(held_out[name] for name in it.groups if name in held_out):
        yield (
            f"{len(leaked)} of the scenarios that were trained on belong to the split {leaked[0]}: what is measured "
            "there is no evidence. Look at the task's scenarios, or at what was ingested"
        )


TRIPWIRES: dict[str, Callable[[Iteration], Iterator[str]]] = {
    "no variance": no_variance,
    "missing episodes": missing_episodes,
    "empty episodes": empty_episodes,
    "repeated error": repeated_error,
    "failed episodes": failed_episodes,
    "quarantine": quarantined,
    "unscored": unscored,
    "judge alike": judge_alike,
    "same attempts": same_attempts,
    "stale sampler": stale_sampler,
    "logprob drift": logprob_drift,
    "adapter unchanged": adapter_unchanged,
    "zero gradient": zero_gradient,
    "no choice": no_choice,
    "length": lambda it: explosion(it, "tokens", "sampled tokens"),
    "turns": lambda it: explosion(it, "turns", "turns"),
    "truncation": truncation,
    "certainty": certainty,
    "collapse": collapse,
    "reward hacking": reward_hacking,
    "other adapter": other_adapter,
    "held-out scenarios": trained_on_held_out,
}


_last: dict[tuple[Path, int], tuple[object, list[Finding]]] = {}  # what was seen in an iteration, and in which files
_looking = threading.Lock()


def findings(run: Path, number: int) -> list[Finding]:
    """What the tripwires see in an iteration of the run, in a fixed order. UserError where a file of it is missing.

    A run asks three times: for the terminal, for MLflow, and at its end. Files that are the same as before are read once."""
    with _looking:
        key, files = (run.absolute(), number), stamps(run, number)
        if _last.get(key, (None,))[0] != files:
            _last[key] = files, _findings(run, number)
        return _last[key][1]


def stamps(run: Path, number: int) -> object:
    """What tells whether an iteration's files have changed, and those of earlier ones that tripwires compare it with."""
    names = ("metrics.json", "evaluation/summary.json")
    earlier = [run / f"{place:03d}" / name for place in range(1, number) for name in names]
    own = [each for each in signatures(run / f"{number:03d}") if "/timings/" not in each[0]]
    return sorted(own), [path.stat().st_mtime_ns for path in earlier if path.exists()]


def _findings(run: Path, number: int) -> list[Finding]:
    iteration = Iteration(run, number)
    try:
        return [Finding(name, text) for name, look in TRIPWIRES.items() if (text := next(look(iteration), ""))]
    except UserError:  # also for a parquet file that is missing
        raise
    except FileNotFoundError as problem:
        raise UserError(f"{problem.filename} is missing: run the iteration again (`.venv/bin/dvc repro`)") from problem
    except (ValueError, KeyError) as problem:
        reason = (str(problem).splitlines() or [""])[0]
        raise UserError(
            f"{iteration.folder} cannot be read ({reason}): make it again (`.venv/bin/dvc repro`)"
        ) from problem
