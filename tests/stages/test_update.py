"""The stage update on files: every trajectory is counted, what breaks the contract is set aside with its reason, and what
another policy sampled is refused. On a random tiny Qwen3; in one process, and in two that share it.
"""

from __future__ import annotations

import json
import math
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from addons.accelerate import ranks
from addons.advantages import gigpo
from environments.base import Scenario
from steps.core.errors import UserError
from steps.core.params import Policy, Rollout, Update, UpdateParams
from steps.core.records import Reward, Row, StopReason, Trajectory, Turn, write_records
from steps.training.batches import Example
from steps.training.fates import TRAINED
from steps.training.grpo import Trainer
from steps.update import update
from tests.support import tiny
from tests.support.tiny import files, moved, plain_logps

pytestmark = pytest.mark.usefixtures("one_thread")
END = 5  # of a turn
SETTINGS = {"steps_per_generation": 2, "learning_rate": 1e-2}


def turns_of(model: Any, rng: random.Random, prompt: Sequence[int], is_cut: bool) -> list[Turn]:
    """One to three turns after a prompt, with the model's own logprobs; the last one is cut off, or all end."""
    import torch

    ids, turns = list(prompt), []
    for left in reversed(range(rng.randint(1, 3))):
        tokens = [rng.randrange(6, tiny.VOCABULARY) for _ in range(rng.randint(1, 4))]
        finish_reason = "length" if is_cut and not left else "stop"
        sampled = tokens if finish_reason == "length" else [*tokens, END]
        with torch.no_grad():
            logps = plain_logps(model, Row([*ids, *sampled], [], []), 1.0)[len(ids) - 1 :]
        turn = {
            "prompt_ids": tuple(ids),
            "completion_ids": tuple(sampled),
            "logprobs": tuple(min(0.0, value) for value in logps.tolist()),
            "message": {"role": "assistant", "content": "text"},
            "observations": (),
            "finish_reason": finish_reason,
        }
        turns.append(Turn.model_validate(turn))
        ids += [*sampled, *(rng.randrange(tiny.VOCABULARY) for _ in range(rng.randint(1, 3)))]
    return turns


class Batch:
    """A previous checkpoint, and 6 attempts at each of 4 scenarios that its adapter made; changed before it is written."""

    def __init__(self, folder: Path, policy: Policy) -> None:
        self.folder, self.policy = folder, policy
        trainer = moved(Trainer(policy, seed=1))
        self.adapter_hash = trainer.save_adapter(folder / "previous-adapter")
        trainer.save_checkpoint(folder / "previous", self.adapter_hash)
        rng = random.Random(1)
        self.trajectories: dict[str, Trajectory] = {}
        self.rewards: dict[str, Reward] = {}
        for scenario in range(4):
            prompt = [rng.randrange(tiny.VOCABULARY) for _ in range(6)]
            for attempt in range(6):
                self.add(f"s{scenario}", attempt, turns_of(trainer.model, rng, prompt, is_cut=attempt == 5))
                name = f"s{scenario}/{attempt}"
                self.rewards[name] = reward(name, float(attempt % 3) + rng.random())

    def add(self, scenario: str, attempt: int, turns: Sequence[Turn], stop_reason: StopReason | None = None) -> None:
        name = f"{scenario}/{attempt}"
        is_cut = bool(turns) and turns[-1].finish_reason == "length"
        self.trajectories[name] = Trajectory(
            id=name,
            scenario_id=scenario,
            attempt=attempt,
            adapter_hash=self.adapter_hash,
            turns=tuple(turns),
            stop_reason=stop_reason or ("length" if is_cut else "done"),
            error="boom" if stop_reason == "error" else None,
        )

    def change(self, name: str, **changes: Any) -> None:
        self.trajectories[name] = self.trajectories[name].model_copy(update=changes)

    def change_turn(self, name: str, **changes: Any) -> None:
        """Its first turn."""
        first, *others = self.trajectories[name].turns
        self.change(name, turns=(first.model_copy(update=changes), *others))

    def score(self, name: str, score: float | None) -> None:
        self.rewards[name] = reward(name, score)

    def drop(self, *names: str) -> None:
        for name in names:
            del self.trajectories[name], self.rewards[name]

    def write(self) -> None:
        write_records(self.trajectories.values(), self.folder / "trajectories.parquet")
        write_records(self.rewards.values(), self.folder / "rewards.parquet")

    def update(
        self,
        to: str = "new",
        temperature: float = 1.0,
        previous: str = "previous",
        behaviour: str | None = None,
        scenarios: Path | None = None,
        **knobs: Any,
    ) -> dict[str, Any]:
        """Run the stage; what it wrote as metrics."""
        self.write()
        (self.folder / to).mkdir()
        update(
            self.folder / "trajectories.parquet",
            self.folder / "rewards.parquet",
            self.folder / previous,
            self.folder / to / "adapter",
            self.folder / to / "checkpoint",
            self.folder / to / "metrics.json",
            UpdateParams(
                task="_template",
                seed=3,
                policy=self.policy,
                rollout=Rollout(temperature=temperature),
                update=Update.model_validate(SETTINGS | knobs),
            ),
            self.folder / to / "fates.json",
            None if behaviour is None else self.folder / behaviour,
            scenarios,
        )
        measured = dict(json.loads((self.folder / to / "metrics.json").read_text()))
        fates = self.fates(to)
        assert list(fates) == list(self.trajectories)
        assert measured["trained"] == sum(name in TRAINED for name in fates.values())
        quarantined = {name for names in measured["quarantine"].values() for name in names}
        assert {name for name, what in fates.items() if what == "quarantined"} == quarantined
        return measured

    def fates(self, to: str = "new") -> dict[str, str]:
        return dict(json.loads((self.folder / to / "fates.json").read_text()))

    def adapter(self, to: str = "new") -> dict[str, bytes]:
        return files(self.folder / to / "adapter")


def reward(name: str, score: float | None) -> Reward:
    is_success = score is not None and score > 1
    return Reward(trajectory_id=name, scenario_id=name[:2], name="rule", score=score, success=is_success)


@pytest.fixture
def batch(tmp_path: Path, policy: Policy) -> Batch:
    return Batch(tmp_path, policy)


def counts(metrics: dict[str, Any]) -> tuple[int, ...]:
    """(collected, trained, quarantined, without signal); what comes in goes out."""
    names = ("collected", "trained", "quarantined", "without_signal")
    collected, *others = (metrics[name] for name in names)
    assert collected == sum(others)
    assert metrics["quarantined"] == sum(map(len, metrics["quarantine"].values()))
    return (collected, *others)


def weights_of(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return dict(load_file(folder / "adapter_model.safetensors"))


# --- What is trained on


def test_a_whole_batch(batch: Batch) -> None:
    measured = batch.update()
    assert counts(measured) == (24, 24, 0, 0)
    assert measured["quarantine"] == {}
    assert (measured["groups"], measured["zero_variance_groups"], measured["truncated"]) == (4, 0, 4)
    assert (measured["rows"], measured["optimizer_steps"]) == (24, 2)
    assert measured["sampler_kl"] < 1e-9
    scores = [one.score or 0.0 for one in batch.rewards.values()]
    assert measured["reward_mean"] == pytest.approx(sum(scores) / 24)
    assert measured["success"] == pytest.approx(sum(bool(one.success) for one in batch.rewards.values()) / 24)
    turns = [turn for one in batch.trajectories.values() for turn in one.turns]
    assert measured["turns"] == pytest.approx(len(turns) / 24)
    assert measured["tokens"] == pytest.approx(sum(len(turn.completion_ids) for turn in turns) / 24)
    assert batch.adapter() != files(batch.folder / "previous-adapter")


def test_the_tokens_of_an_agent_are_trained_on_as_any_but_for_those_that_a_grammar_chose(batch: Batch) -> None:
    """The same tokens give the same adapter whoever asked for them; where a grammar chose all of them, there is none to
    train on, in whole steps or in a whole batch."""
    plain = batch.update("plain")
    asked = {"context": ({"role": "user", "content": "?"},)}
    for name, played in list(batch.trajectories.items()):
        first, *others = played.turns
        turns = [first.model_copy(update=asked), *others]
        turns[-1] = turns[-1].model_copy(update={**asked, "fork": "edited" if others else ""})
        batch.change(name, turns=tuple(turns), stop_reason="done")
    agents = batch.update("agents")
    assert counts(agents) == (24, 24, 0, 0)
    assert agents["tokens_trained"] == plain["tokens_trained"] == agents["tokens_collected"]
    assert batch.adapter("agents") == batch.adapter("plain")

    for scenario in range(4):  # whole groups: a step may consist of them alone
        for attempt in range(6 if scenario < 2 else 1):
            name = f"s{scenario}/{attempt}"
            constrained = [turn.model_copy(update={"is_constrained": True}) for turn in batch.trajectories[name].turns]
            batch.change(name, turns=tuple(constrained))
    partly = batch.update("partly")
    assert counts(partly) == (24, 10, 0, 14)
    assert partly["tokens_trained"] + partly["tokens_dropped/constrained"] == partly["tokens_collected"]
    assert partly["tokens_dropped/constrained"] > 0
    for name in batch.trajectories:
        constrained = [turn.model_copy(update={"is_constrained": True}) for turn in batch.trajectories[name].turns]
        batch.change(name, turns=tuple(constrained))
    none = batch.update("none", beta=0.1)
    assert (counts(none), none["tokens_trained"]) == ((24, 0, 0, 24), 0)


def test_the_checkpoint_names_the_adapter_that_was_written_and_is_gone_on_from(batch: Batch) -> None:
    from steps.policy.adapter import adapter_hash

    batch.update()
    trainer = Trainer(batch.policy, checkpoint=batch.folder / "new/checkpoint")
    assert trainer.adapter_hash == adapter_hash(batch.folder / "new/adapter")
    assert trainer.adapter_hash != batch.adapter_hash
    assert trainer.steps == 2


def test_the_same_files_give_the_same_bytes(batch: Batch) -> None:
    batch.update("one")
    batch.update("two")
    for name in ("adapter", "checkpoint"):
        assert files(batch.folder / "one" / name) == files(batch.folder / "two" / name)
    assert (batch.folder / "one/metrics.json").read_bytes() == (batch.folder / "two/metrics.json").read_bytes()


# --- What an older adapter sampled


@pytest.mark.parametrize("mode", [None, "token_mask", "sequence_mask"])
def test_what_an_older_adapter_sampled_is_weighted_as_trl_does(batch: Batch, mode: str | None) -> None:
    """By hand: exp(newer - sampler) of each token or trajectory, cut at 3 by default; with a mask, what is above is left
    out. Nothing is left of the older adapter in the model."""
    import torch

    plain = batch.update("newer", max_kl=None)
    chosen: dict[str, Any] = {}
    if mode:
        chosen = {"vllm_importance_sampling_correction": True, "vllm_importance_sampling_mode": mode}
        chosen["vllm_importance_sampling_clip_max"] = 1.1
    measured = batch.update("new", previous="newer/checkpoint", behaviour="previous-adapter", **chosen)
    assert not [name for name in plain if "ratio/" in name and "importance" in name]
    assert measured["sampler_kl"] < 1e-9  # of the sampler and the older adapter, as the trainer computes it
    newer = tiny.stock(batch.policy, batch.folder / "newer/adapter")
    ratios, raised = [], []
    for trajectory in batch.trajectories.values():
        [row] = trajectory.flatten()
        with torch.no_grad():
            now = plain_logps(newer, row, 1.0)
        own = [float(now[place - 1]) - row.logprobs[place] for place, is_sampled in enumerate(row.mask) if is_sampled]
        raised += [math.exp(sum(own))] if mode == "sequence_mask" else [math.exp(one) for one in own]
    bound = 1.1 if mode else 3.0
    ratios = [min(one, bound) if mode is None else one * (one <= bound) for one in raised]
    name = "sampling/importance_sampling_ratio/"
    assert measured[f"{name}mean"] == pytest.approx(sum(ratios) / len(ratios), rel=1e-4)
    assert measured[f"{name}max"] == pytest.approx(max(ratios), rel=1e-4)
    assert measured[f"{name}min"] == pytest.approx(min(ratios), rel=1e-4)
    assert measured[f"{name}out_of_bounds"] == pytest.approx(sum(one > bound for one in raised) / len(raised))
    assert measured[f"{name}out_of_bounds"] > 0


def test_an_adapter_that_is_not_older_changes_nothing(batch: Batch) -> None:
    batch.update("without")
    batch.update("with", behaviour="previous-adapter")
    for name in ("adapter", "checkpoint"):
        assert files(batch.folder / "with" / name) == files(batch.folder / "without" / name)
    assert (batch.folder / "with/metrics.json").read_bytes() == (batch.folder / "without/metrics.json").read_bytes()


def test_that_the_older_adapter_sampled_the_batch_is_proved_with_it(batch: Batch) -> None:
    """Not by its hash alone: trajectories with that hash and the logprobs of another policy are refused."""
    from steps.policy.adapter import adapter_hash

    batch.update("newer")
    with pytest.raises(UserError, match="sampled by adapter"):
        batch.update("a", previous="newer/checkpoint")  # without it the batch is of a stale adapter
    trainer = moved(Trainer(batch.policy, checkpoint=batch.folder / "previous"), 0.3, seed=5)
    other = trainer.save_adapter(batch.folder / "other")
    assert other == adapter_hash(batch.folder / "other") != batch.adapter_hash
    with pytest.raises(UserError, match="sampled by adapter"):
        batch.update("b", previous="newer/checkpoint", behaviour="other")
    for name in list(batch.trajectories):
        batch.change(name, adapter_hash=other)
    with pytest.raises(UserError, match=r"KL\(sampler ‖ trainer\)"):
        batch.update("c", previous="newer/checkpoint", behaviour="other")
    for name in list(batch.trajectories):
        batch.change(name, adapter_hash=batch.adapter_hash)
    measured = batch.update("d", previous="newer/checkpoint", behaviour="previous-adapter")
    assert counts(measured) == (24, 24, 0, 0)


def test_an_adapter_of_another_rank_is_a_sentence(batch: Batch) -> None:
    from steps.training.model import adapter_of

    wide = batch.policy.model_copy(update={"lora": batch.policy.lora.model_copy(update={"rank": 3})})
    Trainer(wide, seed=1).save_adapter(batch.folder / "wide")
    model = Trainer(batch.policy, checkpoint=batch.folder / "previous").model
    with pytest.raises(UserError, match="another rank"), adapter_of(model, batch.folder / "wide"):
        pass


BREACHES: dict[str, Callable[[Batch], None]] = {
    "the episode failed": lambda batch: batch.add("s0", 0, batch.trajectories["s0/0"].turns, "error"),
    "no turn was sampled": lambda batch: batch.add("s0", 0, [], "context"),
    "a turn without a prompt": lambda batch: batch.change_turn("s0/0", prompt_ids=()),
    "a turn without sampled tokens": lambda batch: batch.change_turn("s0/0", completion_ids=(), logprobs=()),
    "not as many logprobs as sampled tokens": lambda batch: batch.change_turn("s0/0", logprobs=(-1.0,) * 9),
    "a logprob that is not finite or above zero": lambda batch: batch.change_turn(
        "s0/0", logprobs=(0.5,) * len(batch.trajectories["s0/0"].turns[0].logprobs)
    ),
    "a token that the model does not know": lambda batch: batch.change_turn(
        "s0/0", prompt_ids=(tiny.VOCABULARY, *batch.trajectories["s0/0"].turns[0].prompt_ids[1:])
    ),
    "a turn whose finish_reason does not fit its last token": lambda batch: batch.change_turn(
        "s0/0", finish_reason="length"
    ),
    "a stop_reason that does not fit the last turn": lambda batch: batch.change("s0/0", stop_reason="length"),
}


@pytest.mark.parametrize("reason", BREACHES)
def test_what_breaks_the_contract_is_set_aside_and_nothing_else_changes(batch: Batch, reason: str) -> None:
    BREACHES[reason](batch)
    measured = batch.update("with")
    assert counts(measured) == (24, 23, 1, 0)
    assert measured["quarantine"] == {reason: ["s0/0"]}
    batch.drop("s0/0")
    without = batch.update("without")
    assert counts(without) == (23, 23, 0, 0)
    assert batch.adapter("with") == batch.adapter("without")


def test_a_batch_of_everything_is_counted_to_the_last(batch: Batch, capsys: pytest.CaptureFixture[str]) -> None:
    batch.add("s0", 0, [], "error")
    batch.add("s0", 1, [], "error")
    batch.change("s1/0", stop_reason="length")
    batch.score("s1/1", None)
    for attempt in range(6):
        batch.score(f"s2/{attempt}", 1.0)  # a flat group
        batch.score(f"s3/{attempt}", None if attempt else 1.0)  # one score: nothing to compare with
    measured = batch.update()
    assert counts(measured) == (24, 8, 3, 13)
    assert measured["quarantine"] == {
        "the episode failed": ["s0/0", "s0/1"],
        "a stop_reason that does not fit the last turn": ["s1/0"],
    }
    fates = dict.fromkeys(batch.trajectories, "gradient")
    fates |= dict.fromkeys(("s0/0", "s0/1", "s1/0"), "quarantined") | {"s1/1": "unscored"}
    fates |= {f"s2/{attempt}": "zero_variance" for attempt in range(6)}
    fates |= {f"s3/{attempt}": "unscored" if attempt else "zero_variance" for attempt in range(6)}
    assert batch.fates() == fates
    assert (measured["groups"], measured["zero_variance_groups"]) == (4, 2)
    said = capsys.readouterr().out
    assert "2 trajectories quarantined: the episode failed (s0/0, s0/1)" in said
    assert "8 of 24 trajectories trained on, 2 groups without signal" in said


def test_unscored_attempts_and_failed_episodes_can_be_dropped(batch: Batch) -> None:
    """The update is then the one of a batch without them."""
    batch.score("s0/0", None)
    batch.add("s1", 1, batch.trajectories["s1/1"].turns, "error")
    batch.score("s1/1", -100.0)
    batch.add("s2", 2, [], "error")
    batch.score("s2/2", None)
    for attempt in range(6):
        batch.score(f"s3/{attempt}", None)
    measured = batch.update("with", without_signal="drop")
    assert counts(measured) == (24, 15, 2, 7)
    assert counts(batch.update("counted")) == (24, 15, 2, 7)
    batch.drop("s0/0", "s1/1", "s2/2", *(f"s3/{attempt}" for attempt in range(6)))
    without = batch.update("without")
    assert counts(without) == (15, 15, 0, 0)
    assert batch.adapter("with") == batch.adapter("without") != batch.adapter("counted")
    assert measured["reward_mean"] == without["reward_mean"]
    assert measured["reward_std"] == without["reward_std"]


# --- Episodes that were cut off


def test_truncated_episodes_are_kept(batch: Batch) -> None:
    measured = batch.update("kept", truncated_completions="keep")
    assert (counts(measured), measured["truncated"]) == ((24, 24, 0, 0), 4)
    batch.update("default")
    assert batch.adapter("kept") == batch.adapter("default")


def test_truncated_episodes_are_masked_and_still_compared_with(batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    """They count as trajectories, and their tokens nowhere; the others' advantages are as they were."""
    seen: list[list[Example]] = []
    real = Trainer.train

    def record(self: Trainer, examples: list[Example], *others: Any) -> dict[str, float]:
        seen.append(examples)
        return real(self, examples, *others)

    monkeypatch.setattr(Trainer, "train", record)
    measured = batch.update("masked", truncated_completions="mask")
    batch.update("kept")
    assert (counts(measured), measured["truncated"], measured["rows"]) == ((24, 20, 0, 4), 4, 20)
    assert {name for name, what in batch.fates("masked").items() if what == "truncated"} == {
        f"s{scenario}/5" for scenario in range(4)
    }
    assert set(batch.fates("kept").values()) == {"gradient"}
    batch.update("dropped", truncated_completions="mask", without_signal="drop")
    masked, kept, rest = seen
    cut = [played.flatten() for played in batch.trajectories.values() if played.stop_reason == "length"]
    assert len(cut) == 4
    assert [example._replace(is_masked=example.rows in cut) for example in kept] == masked
    assert [example for example in kept if example.rows not in cut] == rest
    assert {example.group for example in rest} == {"s0", "s1", "s2", "s3"}


def test_truncated_episodes_are_penalised(batch: Batch) -> None:
    measured = batch.update("penalised", truncated_completions="penalise", truncation_penalty=0.7)
    assert (counts(measured), measured["truncated"]) == ((24, 24, 0, 0), 4)
    for scenario in range(4):
        name = f"s{scenario}/5"
        before = batch.rewards[name].score
        assert before is not None
        batch.score(name, before - 0.7)
    by_hand = batch.update("by hand")
    assert batch.adapter("penalised") == batch.adapter("by hand")
    assert measured["reward_mean"] == pytest.approx(by_hand["reward_mean"])
    batch.score("s0/5", None)  # unscored stays unscored
    assert counts(batch.update("unscored", truncated_completions="penalise")) == (24, 23, 0, 1)


def test_an_episode_cut_off_by_the_context_is_truncated_too(batch: Batch) -> None:
    batch.change("s0/0", stop_reason="context")
    measured = batch.update(truncated_completions="mask")
    assert (counts(measured), measured["truncated"]) == ((24, 19, 0, 5), 5)


def test_an_agents_cut_off_turn_is_counted_though_the_agent_ended_by_itself(batch: Batch) -> None:
    """A turn of an agent behind the gateway has a context, and the agent goes on after it was cut off."""
    cut = next(each for each in batch.trajectories.values() if each.stop_reason == "length")
    shown = {"context": ({"role": "user", "content": "ask"},)}
    turns = (cut.turns[0].model_copy(update=shown), *cut.turns[1:])
    batch.change(cut.id, turns=turns, stop_reason="done")
    measured = batch.update()
    assert (measured["quarantined"], measured["truncated"]) == (0, 4)


# --- What is refused


def nothing_written(batch: Batch) -> bool:
    return not any((batch.folder / "new").iterdir())


def test_a_stale_adapter_is_refused(batch: Batch) -> None:
    batch.change("s2/3", adapter_hash="stale")
    with pytest.raises(UserError, match=r"^1 of 24 trajectories were sampled by adapter stale, but .*previous holds"):
        batch.update()
    assert nothing_written(batch)


def test_a_batch_of_another_iteration_is_refused(batch: Batch) -> None:
    trainer = moved(Trainer(batch.policy, checkpoint=batch.folder / "previous"))
    trainer.save_checkpoint(batch.folder / "later", trainer.save_adapter(batch.folder / "later-adapter"))
    (batch.folder / "previous").rename(batch.folder / "earlier")
    (batch.folder / "later").rename(batch.folder / "previous")
    with pytest.raises(UserError, match=rf"^24 of 24 trajectories were sampled by adapter {batch.adapter_hash}"):
        batch.update()
    assert nothing_written(batch)


@pytest.mark.parametrize("fault", ["another temperature", "other weights", "logprobs of other turns"])
def test_trajectories_of_another_policy_are_refused(batch: Batch, fault: str) -> None:
    if fault == "other weights":  # under the same name
        trainer = moved(Trainer(batch.policy, checkpoint=batch.folder / "previous"), 0.05, seed=2)
        (batch.folder / "previous").rename(batch.folder / "earlier")
        trainer.save_checkpoint(batch.folder / "previous", batch.adapter_hash)
    if fault == "logprobs of other turns":
        for name, one in batch.trajectories.items():
            batch.change_turn(name, logprobs=one.turns[0].logprobs[::-1])
    with pytest.raises(UserError, match="not sampled by the policy that is being trained: KL"):
        batch.update(temperature=0.8 if fault == "another temperature" else 1.0)
    assert nothing_written(batch)


def test_rows_with_a_wrong_mask_are_set_aside(batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or refused, where the contract does not look: both stand between a wrong mask and the loss."""
    flatten = Trajectory.flatten

    def shifted(one: Trajectory) -> list[Row]:
        return [Row(row.ids, [*row.mask[1:], 1], row.logprobs) for row in flatten(one)]

    monkeypatch.setattr(Trajectory, "flatten", shifted)
    measured = batch.update("aside")
    assert counts(measured) == (24, 0, 24, 0)
    assert set(measured["quarantine"]) == {"a mask that does not alternate as the turns do"}
    monkeypatch.setattr("steps.training.contract.rows_breach", lambda *_: None)
    with pytest.raises(UserError, match="a stale adapter, another temperature or a wrong mask does this"):
        batch.update()
    assert nothing_written(batch)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda batch: batch.rewards.pop("s0/0"), "1 trajectories have no reward, and there are 23 rewards for 24"),
        (
            lambda batch: batch.rewards.update({"x": reward("x", 1.0)}),
            "0 trajectories have no reward, and there are 25",
        ),
        (
            lambda batch: batch.trajectories.pop("s0/0"),
            "0 trajectories have no reward, and there are 24 rewards for 23",
        ),
    ],
)
def test_rewards_must_fit(batch: Batch, change: Callable[[Batch], None], said: str) -> None:
    change(batch)
    with pytest.raises(UserError, match=rf"rewards\.parquet does not fit .*trajectories\.parquet: {said}"):
        batch.update()
    assert nothing_written(batch)


def test_two_trajectories_with_one_id_are_refused(batch: Batch) -> None:
    batch.change("s0/1", id="s0/0")
    with pytest.raises(AssertionError, match="24 trajectories have 23 ids"):
        batch.update()
    assert nothing_written(batch)


# --- Nothing to learn from


def test_a_rate_that_breaks_the_weights_stops_with_the_batch_kept(batch: Batch) -> None:
    with pytest.raises(UserError, match=r"optimiser step 2 has a norm of (nan|inf).*the step's scenarios: "):
        batch.update(learning_rate=1e30, steps_per_generation=2)
    assert not (batch.folder / "new/adapter").exists()
    assert not (batch.folder / "new/metrics.json").exists()
    assert (batch.folder / "trajectories.parquet").exists()


def test_flat_groups_leave_the_adapter_as_it_was_where_they_are_dropped(batch: Batch) -> None:
    for name in batch.rewards:
        batch.score(name, float(name[1]))
    measured = batch.update(without_signal="drop")
    assert counts(measured) == (24, 0, 0, 24)
    assert (measured["zero_variance_groups"], measured["rows"], measured["optimizer_steps"]) == (4, 0, 0)
    assert "loss" not in measured
    assert batch.adapter() == files(batch.folder / "previous-adapter")
    assert files(batch.folder / "new/checkpoint") == files(batch.folder / "previous")


def test_flat_groups_alone_have_the_gradient_of_the_kl_term(batch: Batch) -> None:
    for name in batch.rewards:
        batch.score(name, float(name[1]))
    measured = batch.update("by signal", beta=0.01)
    assert (measured["rows"], measured["optimizer_steps"], "loss" in measured) == (0, 0, False)
    assert batch.adapter("by signal") == files(batch.folder / "previous-adapter")
    measured = batch.update("with KL", beta=0.01, optimizer_steps="fixed")
    assert counts(measured) == (24, 0, 0, 24)
    assert (measured["rows"], measured["optimizer_steps"]) == (0, 2)
    assert measured["loss"] == pytest.approx(
        0.01 * measured["kl"], rel=0.2
    )  # of two steps, with a little change between
    assert measured["sampler_kl"] < 1e-9
    assert batch.adapter("with KL") != files(batch.folder / "previous-adapter")
    measured = batch.update("without KL", beta=0, optimizer_steps="fixed")
    assert (measured["optimizer_steps"], measured["loss"], measured["grad_norm"]) == (2, 0, 0)
    assert "sampler_kl" not in measured, "nothing was computed, so nothing was compared"
    assert batch.adapter("without KL") == files(batch.folder / "previous-adapter")


def test_a_batch_of_failures_leaves_the_adapter_as_it_was(batch: Batch) -> None:
    for name in list(batch.trajectories):
        batch.add(name[:2], int(name[3:]), [], "error")
        batch.score(name, None)
    measured = batch.update()
    assert counts(measured) == (24, 0, 24, 0)
    assert (measured["reward_mean"], measured["reward_std"], measured["success"]) == (0.0, 0.0, 0.0)
    assert batch.adapter() == files(batch.folder / "previous-adapter")


# --- Advantages of turns


@pytest.fixture
def scenarios(batch: Batch) -> Path:
    """The scenarios of the batch's trajectories, whose states are told by nothing but their past."""
    folder = batch.folder / "scenarios"
    folder.mkdir()
    rows = [Scenario(id=f"s{number}", task="_template", split="train", messages=(), data={}) for number in range(4)]
    write_records(rows, folder / "train.parquet")
    return folder


def written(batch: Batch, to: str) -> dict[str, bytes]:
    files = ("adapter", "checkpoint", "fates.json", "metrics.json")
    paths = [
        path for name in files for path in sorted((batch.folder / to).glob(f"{name}/*" if "." not in name else name))
    ]
    return {path.name: path.read_bytes() for path in paths}


def test_turns_that_are_alone_are_grpo_byte_for_byte(
    batch: Batch, scenarios: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = batch.update("grpo")
    monkeypatch.setattr(
        gigpo, "states_of", lambda env, known, row, unusable: [(row.id, n) for n in range(len(row.turns))]
    )
    alone = batch.update("gigpo", scenarios=scenarios, advantages="gigpo")
    one, other = written(batch, "grpo"), written(batch, "gigpo")
    assert {name: alone.pop(name) for name in sorted(alone) if name.startswith("gigpo/")} == {
        "gigpo/turns_in_groups": 0,
        "gigpo/later_turns_in_groups": 0,
    }
    assert measured == alone
    assert one.pop("metrics.json") != other.pop("metrics.json")
    assert len(one) > 4
    assert one == other


def test_turns_of_their_own_change_the_adapter(batch: Batch, scenarios: Path) -> None:
    batch.update("grpo")
    measured = batch.update("gigpo", scenarios=scenarios, advantages="gigpo")
    assert batch.adapter("gigpo") != batch.adapter("grpo")
    assert 0 < measured["gigpo/turns_in_groups"] < 1, "all begin with the same prompt, and go on from others"
    assert measured["gigpo/later_turns_in_groups"] == 0
    for name in batch.rewards:
        batch.score(name, 1.0)
    measured = batch.update("alike", scenarios=scenarios, advantages="gigpo")
    assert measured["trained"] > 0, "shorter attempts are better than longer ones"
    assert "gradient" in batch.fates("alike").values()


def test_missing_scenarios_are_named(batch: Batch, scenarios: Path) -> None:
    with pytest.raises(UserError, match="name them with --scenarios run/scenarios"):
        batch.update(advantages="gigpo")
    write_records([Scenario(id="s0", task="x", split="train", messages=(), data={})], scenarios / "train.parquet")
    (batch.folder / "new").rmdir()
    with pytest.raises(UserError, match=r"does not have the scenario s1 of trajectory s1/0: sample again"):
        batch.update(scenarios=scenarios, advantages="gigpo")


# --- In one process and in two


def below(folder: Path) -> list[str]:
    return sorted(os.fspath(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.slow
@pytest.mark.nightly
def test_two_processes_make_the_update_of_one(batch: Batch) -> None:
    """Some steps have one trajectory with a gradient or none at all, and so nothing for one of the two or for both. With a
    sharded base the same, and bit for bit: each process then passes as often through the model as the other.
    """
    for name, attempt in batch.trajectories.items():  # a little off, so that there is a KL to compare
        batch.change_turn(name, logprobs=tuple(value - 0.01 for value in attempt.turns[0].logprobs))
        if name.startswith(("s2", "s3")):
            batch.score(name, 1.0)  # flat groups
    settings: dict[str, Any] = {"steps_per_generation": 16, "beta": 0, "tokens_per_micro_batch": 64}
    shared = settings | {"launcher": "accelerate", "processes": 2}
    one = batch.update("one", **settings)
    two = batch.update("two", **shared)
    assert batch.update("sharded", **shared, shard=True, gradient_checkpointing=True) == two
    for name in ("adapter", "checkpoint"):
        assert files(batch.folder / "sharded" / name) == files(batch.folder / "two" / name)
    ranks.end()

    assert below(batch.folder / "two") == below(batch.folder / "one")
    before, alone, divided = (
        weights_of(batch.folder / name) for name in ("previous-adapter", "one/adapter", "two/adapter")
    )
    largest = max(float((value - before[name]).abs().max()) for name, value in alone.items())
    gap = max(float((value - divided[name]).abs().max()) for name, value in alone.items())
    assert largest > 1e-2
    assert gap < 1e-5
    assert one["sampler_kl"] > 1e-5
    assert one.pop("quarantine") == two.pop("quarantine") == {}
    extremes = {name for name in one if name.endswith(("_min", "_max"))}  # of the rows of a micro-batch
    assert one.keys() == two.keys()
    for name in one.keys() - extremes:
        assert two[name] == pytest.approx(one[name], rel=1e-3, abs=1e-9), name
