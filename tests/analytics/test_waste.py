"""What an iteration cost and wasted, by a table made by hand, and compared with what the trainer itself counts."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from steps.analytics import waste
from steps.core import params
from steps.core.errors import UserError
from steps.core.records import Reward, StopReason, Trajectory, Turn, write_records
from steps.training import grpo
from steps.training.batches import Example
from steps.training.fates import FATES, account

END = 2  # the token that ends a turn
ADAPTER: str = "a" * 16


def trajectory(name: str, scenario: str, lengths: Sequence[int], stop: StopReason = "done") -> Trajectory:
    """Turns of so many sampled tokens, one prompt extending the other; the last is cut off where `stop` is length."""
    turns: list[Turn] = []
    ids: tuple[int, ...] = (5, 6, 7)
    for number, length in enumerate(lengths):
        cut = stop == "length" and number == len(lengths) - 1
        sampled = (*[8] * (length - 1), 9 if cut else END)
        message = {"role": "assistant", "content": "words"}
        turns.append(
            Turn(
                prompt_ids=ids,
                completion_ids=sampled,
                logprobs=(-0.5,) * length,
                message=message,
                observations=(),
                finish_reason="length" if cut else "stop",
            )
        )
        ids = (*ids, *sampled, 3)
    attempt = int(name[-1])
    return Trajectory(
        id=name,
        scenario_id=scenario,
        attempt=attempt,
        adapter_hash=ADAPTER,
        turns=tuple(turns),
        stop_reason=stop,
        error="KeyError: 'x'" if stop == "error" else None,
    )


class Counting(grpo.Trainer):
    """The trainer without a model: it arranges its steps and counts their tokens as ever, and learns nothing."""

    tokens = 0.0

    def __init__(self, *_: Any, **__: Any) -> None:
        self.adapter_hash, self.vocabulary, self.steps, self.is_sharded = ADAPTER, 10, 0, False

    def train(
        self,
        examples: Sequence[Example],
        settings: params.Update,
        temperature: float,
        seed: int,
        behaviour: Path | None = None,
    ) -> dict[str, float]:
        Counting.tokens = sum(step.computed for step in self._steps(examples, settings, seed))
        return {}

    def _batch(self, examples: Sequence[Example], total: int) -> dict[str, Any]:
        return {}

    def save_adapter(self, folder: Path) -> str:
        folder.mkdir()
        return ADAPTER

    def save_checkpoint(self, folder: Path, adapter: str) -> None:
        folder.mkdir()


def updated(
    root: Path,
    played: Sequence[Trajectory],
    scores: Sequence[float | None],
    monkeypatch: pytest.MonkeyPatch,
    **knobs: Any,
) -> Path:
    """run/001 as rollout, score and the real stage update leave it, which computes only what bears a signal."""
    from steps import update

    folder = root / "run" / "001"
    (folder / "timings").mkdir(parents=True)
    (root / "params.yaml").write_text(json.dumps({"task": "toy", "update": {"without_signal": "drop"} | knobs}))
    rewards = [
        Reward(trajectory_id=one.id, scenario_id=one.scenario_id, name="rule", score=score, success=(score or 0) > 0.5)
        for one, score in zip(played, scores, strict=True)
    ]
    write_records(played, folder / "trajectories.parquet")
    write_records(rewards, folder / "rewards.parquet")
    monkeypatch.setattr(grpo, "Trainer", Counting)
    Counting.tokens = 0.0
    update.update(
        folder / "trajectories.parquet",
        folder / "rewards.parquet",
        folder / "previous",
        folder / "adapter",
        folder / "checkpoint",
        folder / "metrics.json",
        params.load(root / "params.yaml", params.UpdateParams),
        folder / "fates.json",
    )
    return folder


def by_hand(root: Path, monkeypatch: pytest.MonkeyPatch, **knobs: Any) -> Path:
    """Five groups, 100 sampled tokens.

    | group | scores | tokens | what becomes of them |
    | a | 1, 0, 0.5 | 10 + 20, 8, 7 | learnt from; the third is at the mean |
    | b | 1, 1 | 6, 4 | all equal |
    | c | 1, 0 | 5, 3 (cut off) | learnt from; the second not where truncated ones are masked |
    | d | None, 1 | 11, 9 | not scored; alone, and so without a comparison |
    | e | 1, 0 | 12, 5 (failed) | the second is quarantined, the first alone |
    """
    played = [
        trajectory("a0", "a", (10, 20)),
        trajectory("a1", "a", (8,)),
        trajectory("a2", "a", (7,)),
        trajectory("b0", "b", (6,)),
        trajectory("b1", "b", (4,)),
        trajectory("c0", "c", (5,)),
        trajectory("c1", "c", (3,), "length"),
        trajectory("d0", "d", (11,)),
        trajectory("d1", "d", (9,)),
        trajectory("e0", "e", (12,)),
        trajectory("e1", "e", (5,), "error"),
    ]
    return updated(root, played, [1, 0, 0.5, 1, 1, 1, 0, None, 1, 1, 0], monkeypatch, **knobs)


def test_the_table_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = by_hand(tmp_path, monkeypatch, truncated_completions="mask")
    for stage, (output, seconds) in {"r": ("trajectories", 3.0), "u": ("adapter", 1.3)}.items():
        (folder / f"timings/{output}.json").write_text(json.dumps({"stage": stage, "seconds": seconds}))
    (folder / "judge.json").write_text(json.dumps({"judge_cost": 0.02, "cost_so_far": 0.5}))
    found = waste.waste(folder)
    tokens = {
        "gradient": 43,
        "quarantined": 5,
        "unscored": 11,
        "zero_variance": 31,
        "truncated": 3,
        "at_mean": 7,
        "constrained": 0,
    }
    assert found.tokens == tokens
    assert found.trajectories == dict(zip(FATES, (3, 1, 1, 4, 1, 0, 1), strict=True))
    assert found.shares == {name: pytest.approx(count / 100, abs=1e-11) for name, count in tokens.items()}
    assert sum(found.shares.values()) == 1
    assert (found.sampled, found.trained) == (100, 50)
    assert found.seconds == {"rollout": 3.0, "update": 1.3}
    assert found.judge_cost == 0.02
    assert found.seconds_per_gradient_token == pytest.approx(0.1)
    logged = found.metrics()
    assert logged["waste/zero_variance"] == found.shares["zero_variance"]
    assert logged.keys() == {f"waste/{name}" for name in tokens} | {
        "waste/sampled_tokens",
        "waste/gradient_tokens",
        "waste/seconds_per_gradient_token",
    }


def test_the_updates_own_account_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same table, as metrics.json and MLflow have it: collected is what is trained on and what is dropped."""
    folder = by_hand(tmp_path, monkeypatch, truncated_completions="mask")
    measured = json.loads((folder / "metrics.json").read_text())
    dropped = {"quarantined": 5, "masked": 3, "without_signal": 42, "constrained": 0}
    assert {name: measured[f"tokens_dropped/{name}"] for name in dropped} == dropped
    assert (measured["tokens_collected"], measured["tokens_trained"], measured["rows_per_episode"]) == (100, 50, 1)
    assert not [name for name in measured if name.startswith("forks/")]


def forked(name: str, score: float) -> tuple[Trajectory, float]:
    """Three turns of 4, 3 and 2 tokens: the second by a grammar, the third after a fork."""
    played = trajectory(name, name[0], (4, 3, 2))
    first, second, third = played.turns
    asked = {"context": ({"role": "user", "content": "?"},)}
    turns = (
        first.model_copy(update=asked),
        second.model_copy(update={"is_constrained": True}),
        third.model_copy(update={"prompt_ids": (5, 9), "fork": "reasoning_stripped", **asked}),
    )
    return played.model_copy(update={"turns": turns}), score


def test_what_a_grammar_chose_and_what_forked_is_accounted_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [forked("a0", 1.0), forked("a1", 0.0), forked("b0", 1.0), forked("b1", 1.0)]
    folder = updated(tmp_path, [played for played, _ in made], [score for _, score in made], monkeypatch)
    measured = json.loads((folder / "metrics.json").read_text())
    assert measured["forks/reasoning_stripped"] == 4
    assert (measured["rows"], measured["rows_per_episode"]) == (4, 2)
    assert (measured["tokens_collected"], measured["tokens_trained"]) == (36, 12)
    assert (measured["tokens_dropped/constrained"], measured["tokens_dropped/without_signal"]) == (6, 18)
    found = waste.waste(folder)
    assert found.tokens == dict.fromkeys(FATES, 0) | {"gradient": 12, "constrained": 6, "zero_variance": 18}
    assert found.trained == Counting.tokens == 12


def test_a_token_that_no_row_trains_on_is_missed() -> None:
    """The account is taken of the rows as they are trained on, and of the tokens as they were sampled."""
    played, _ = forked("a0", 1.0)
    rows = played.flatten()
    assert account([played], {"a0": rows}, {"a0": "gradient"})["tokens_trained"] == 6
    for wrong in (rows[:1], [*rows, rows[0]]):
        with pytest.raises(AssertionError, match="9 tokens were sampled"):
            account([played], {"a0": wrong}, {"a0": "gradient"})


@pytest.mark.parametrize(
    ("knobs", "gradient", "truncated"),
    [
        ({"truncated_completions": "keep"}, 46, 0),
        ({"truncated_completions": "mask"}, 43, 3),
        ({"truncated_completions": "penalise"}, 46, 0),
        ({"scale_rewards": "none"}, 46, 0),
        ({"scale_rewards": "batch"}, 46, 0),
    ],
)
def test_it_is_what_the_trainer_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, knobs: dict[str, Any], gradient: int, truncated: int
) -> None:
    found = waste.waste(by_hand(tmp_path, monkeypatch, **knobs))
    assert (found.tokens["gradient"], found.tokens["truncated"]) == (gradient, truncated)
    assert found.trained == Counting.tokens == gradient + 7


def test_a_penalty_can_make_a_difference_where_there_was_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played = [trajectory("a0", "a", (5,)), trajectory("a1", "a", (3,), "length")]
    folder = updated(tmp_path, played, [1, 1], monkeypatch, truncated_completions="penalise")
    assert waste.waste(folder).tokens["gradient"] == Counting.tokens == 8


@pytest.mark.parametrize("seed", range(6))
def test_any_batch_adds_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    rng = random.Random(seed)
    stops: list[StopReason] = ["done", "done", "max_turns", "length", "context", "error"]
    played = [
        trajectory(f"{group}{attempt}", str(group), [rng.randint(1, 9)] * rng.randint(1, 4), rng.choice(stops))
        for group in range(7)
        for attempt in range(4)
    ]
    scores = [rng.choice([0.0, 0.0, 0.5, 1.0, None]) for _ in played]
    folder = updated(tmp_path, played, scores, monkeypatch, truncated_completions=rng.choice(["keep", "mask"]))
    found = waste.waste(folder)
    assert sum(found.tokens.values()) == found.sampled
    assert sum(found.shares.values()) == 1
    assert sum(reversed(found.shares.values())) == 1
    assert found.trained == Counting.tokens


@pytest.mark.parametrize("counts", [(1, 1, 1), (1, 2, 4), (7, 0, 0), (10**9, 1, 3), (3, 5, 7, 11, 13, 17)])
def test_shares_sum_to_one_exactly(counts: tuple[int, ...]) -> None:
    found = waste.shares({str(place): count for place, count in enumerate(counts)})
    assert sum(found.values()) == 1
    assert list(found.values()) == [pytest.approx(count / sum(counts), abs=1e-11) for count in counts]


def test_shares_of_nothing() -> None:
    assert waste.shares({"gradient": 0, "at_mean": 0}) == {"gradient": 0.0, "at_mean": 0.0}


def test_no_episode_had_a_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = updated(
        tmp_path, [trajectory("a0", "a", (), "context"), trajectory("a1", "a", (), "error")], [1, 0], monkeypatch
    )
    found = waste.waste(folder)
    assert (found.sampled, found.trajectories["quarantined"]) == (0, 2)
    assert found.seconds_per_gradient_token is None
    assert "waste/seconds_per_gradient_token" not in found.metrics()


def test_files_of_different_updates_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = by_hand(tmp_path, monkeypatch, truncated_completions="mask")
    fates = json.loads((folder / "fates.json").read_text())
    for changed in (fates | {"f0": "gradient"}, {name: fates[name] for name in list(fates)[1:]}):
        (folder / "fates.json").write_text(json.dumps(changed))
        with pytest.raises(UserError, match=r"fates\.json does not fit trajectories\.parquet .*of different updates"):
            waste.waste(folder)


@pytest.mark.parametrize("text", ['["gradient"]', '{"a0": "lost"}'])
def test_what_is_no_fate_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    folder = by_hand(tmp_path, monkeypatch)
    (folder / "fates.json").write_text(text)
    with pytest.raises(UserError, match=r"fates\.json cannot be read \(it holds no fates\): make it again"):
        waste.waste(folder)


def test_a_run_from_before_fates_were_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = by_hand(tmp_path, monkeypatch)
    (folder / "fates.json").unlink()
    with pytest.raises(
        UserError, match=r"fates\.json does not exist: the stage update makes it \(`.venv/bin/dvc repro`\)"
    ):
        waste.waste(folder)


@pytest.mark.parametrize("name", ["trajectories.parquet", "fates.json"])
def test_what_cannot_be_read_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    folder = by_hand(tmp_path, monkeypatch)
    (folder / name).write_text("no parquet")
    with pytest.raises(UserError, match=f"{name} cannot be read .*make it again"):
        waste.waste(folder)
    (folder / name).unlink()
    with pytest.raises(UserError, match=f"{name} does not exist"):
        waste.waste(folder)


def test_tracking_logs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from steps.tracking.measured import MeasuredRun

    folder = by_hand(tmp_path, monkeypatch)
    told: list[str] = []
    measured = MeasuredRun(tmp_path, told.append)
    entries: dict[str, Any] = {f"{stage}@001": {"deps": [], "outs": []} for stage in ("update", "score")}
    metrics, _ = measured.iteration("001", entries, None)
    assert metrics["waste/unscored"] == pytest.approx(0.11)
    (folder / "fates.json").unlink()
    metrics, _ = measured.iteration("001", entries, None)
    assert "waste/unscored" not in metrics
    assert any(text.startswith("waste/ is left out: ") for text in told)
