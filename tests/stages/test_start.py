"""What comes before iteration 001: the stages start and sft, and updates whose KL divergence is from where they began."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from addons.supervised.params import SftParams
from addons.supervised.section import Sft
from addons.supervised.sft import sft
from steps.core.errors import UserError
from steps.core.params import Lora, Policy, StartParams
from steps.initialise import initialise
from steps.policy.adapter import adapter_hash
from steps.start import start
from steps.training.grpo import Trainer
from tests.conftest import ROOT
from tests.stages.test_update import Batch
from tests.support import tiny

pytestmark = pytest.mark.usefixtures("_in_root")
TASK = "multiplication"
OUTPUTS = ("adapter", "checkpoint", "successes.json", "judge.json")


@pytest.fixture
def _in_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def begin(batch: Batch, to: str, source: Path, policy: Policy | None = None) -> Path:
    """Run the stage start; the folder that it wrote to."""
    folder = batch.folder / to
    folder.mkdir()
    adapter, checkpoint, successes, judge = (folder / name for name in OUTPUTS)
    start(source, adapter, checkpoint, successes, judge, StartParams(policy=policy or batch.policy))
    return folder


@pytest.fixture
def batch(tmp_path: Path) -> Batch:
    return Batch(tmp_path, tiny.make_policy(tmp_path / "base"))


@pytest.fixture
def source(batch: Batch) -> Path:
    """A folder as the flow brings it: an adapter with its checkpoint, after an update."""
    batch.update("earlier")
    folder = batch.folder / "source"
    folder.mkdir()
    for part in ("adapter", "checkpoint"):
        for path in (batch.folder / "earlier" / part).iterdir():
            (folder / path.name).write_bytes(path.read_bytes())
    return folder


def test_an_adapter_keeps_its_bytes_and_begins_without_optimiser(batch: Batch, source: Path) -> None:
    first, second = begin(batch, "first", source), begin(batch, "second", source)
    assert adapter_hash(first / "adapter") == adapter_hash(source)
    assert json.loads((first / "checkpoint/state.json").read_text()) == {"adapter": adapter_hash(source), "steps": 0}
    for part in ("adapter", "checkpoint"):
        names = [path.relative_to(first / part) for path in sorted((first / part).rglob("*")) if path.is_file()]
        assert [(first / part / name).read_bytes() for name in names] == [
            (second / part / name).read_bytes() for name in names
        ]
    trainer, before = (
        Trainer(batch.policy, checkpoint=first / "checkpoint"),
        json.loads((source / "state.json").read_text()),
    )
    assert (trainer.steps, trainer.moments) == (0, {})
    earlier = Trainer(batch.policy, checkpoint=source)
    assert (earlier.steps, bool(earlier.moments)) == (before["steps"], True)
    assert before["steps"] > 0


def test_with_its_optimiser_training_goes_on_as_it_would_have(batch: Batch, source: Path) -> None:
    policy = batch.policy.model_copy(update={"start_from": "somewhere", "start_optimizer": True})
    folder = begin(batch, "first", source, policy)
    carried, earlier = (Trainer(batch.policy, checkpoint=path) for path in (folder / "checkpoint", source))
    assert carried.steps == earlier.steps > 0
    for name, moments in earlier.moments.items():
        assert all((carried.moments[name][kind] == moment).all() for kind, moment in moments.items())
    (source / "adapter_config.json").write_text("{}")
    with pytest.raises(UserError, match=r"holds adapter .* and the checkpoint of"):
        begin(batch, "second", source, policy)


def test_an_adapter_of_other_layers_is_refused(batch: Batch, source: Path) -> None:
    wide = batch.policy.model_copy(update={"lora": Lora(rank=3, alpha=4)})
    with pytest.raises(UserError, match=r"another rank than .*, which has \[3, 24\] at .* where that has \[2, 24\]"):
        begin(batch, "wide", source, wide)


def test_the_divergence_is_from_the_start_where_that_is_the_reference(batch: Batch) -> None:
    """Before anything has moved it is zero; from the base policy it is not."""
    source = batch.folder / "previous-adapter"
    begin(batch, "begun", source)
    knobs: dict[str, Any] = {"steps_per_generation": 1, "beta": 0.1}
    of_base = batch.update("of-base", previous="begun/checkpoint", **knobs)
    of_start = batch.update("of-start", previous="begun/checkpoint", reference="start", **knobs)
    assert (of_start["kl"], of_base["kl"] > 1e-4) == (0.0, True)
    carried = batch.folder / "of-start/checkpoint/reference/adapter_model.safetensors"
    assert carried.read_bytes() == (source / "adapter_model.safetensors").read_bytes()
    assert not (batch.folder / "of-base/checkpoint/reference").exists()  # nothing reads it
    for name in list(batch.trajectories):  # as if the new adapter had sampled them
        batch.change(name, adapter_hash=adapter_hash(batch.folder / "of-start/adapter"))
    later = batch.update(
        "later", previous="of-start/checkpoint", reference="start", max_sampler_kl=10.0, max_kl=None, **knobs
    )
    assert 0 < later["kl"] < of_base["kl"]


def test_a_reference_that_no_checkpoint_has_is_a_sentence(batch: Batch) -> None:
    with pytest.raises(UserError, match=r"update\.reference is start, and .*previous does not say what that is"):
        batch.update("new", reference="start")


# --- sft


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stage sft after initialise, with the policy of multiplication and twelve demonstrations, two of them no use."""
    import environments
    from addons.supervised import small_policy

    folder = tmp_path_factory.mktemp("warm")
    env = environments.load(TASK)
    data = env.load(ROOT / "tasks_data" / TASK)
    made = small_policy.demonstrations(env, data, {"gold": 1.0}, 3)
    lines = [json.dumps({"messages": next(made), "source": f"d{number}"}) for number in range(10)]
    long = [{"role": "user", "content": "many " * 400}, {"role": "assistant", "content": "5"}]
    lines += ['{"messages": []}', json.dumps({"messages": long})]
    (folder / "demonstrations.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return folder


FOUR_PASSES = Sft(demonstrations=("x",), batch=5, epochs=4, learning_rate=3e-3)


def supervise(folder: Path, to: str, previous: Path, settings: Sft = FOUR_PASSES) -> dict[str, Any]:
    """Run the stage sft; what it wrote as metrics."""
    (folder / to).mkdir()
    adapter, checkpoint, successes, judge = (folder / to / name for name in OUTPUTS)
    policy = Policy(base_model=f"tasks_data/{TASK}/policy", context=256)
    params = SftParams(task=TASK, seed=1, policy=policy, sft=settings)
    metrics = folder / to / "metrics.json"
    data, lines = ROOT / "tasks_data" / TASK, folder / "demonstrations.jsonl"
    sft(data, lines, previous, adapter, checkpoint, successes, judge, metrics, params)
    return dict(json.loads(metrics.read_text()))


def test_supervised_training_learns_and_gives_the_same_bytes_again(warm: Path) -> None:
    from steps.core.params import InitialiseParams

    policy = Policy(base_model=f"tasks_data/{TASK}/policy", context=256)
    initialise(warm / "adapter", warm / "checkpoint", InitialiseParams(seed=1, policy=policy))
    measured = supervise(warm, "first", warm / "checkpoint")
    assert (measured["demonstrations"], measured["trained"], measured["optimizer_steps"]) == (12, 10, 8)
    assert measured["left_out"] == {
        "it has more tokens than policy.context": 1,
        "the assistant says nothing in it": 1,
    }
    assert measured["loss_last"] < 0.5 * measured["loss_first"]
    supervise(warm, "again", warm / "checkpoint")
    for name in ("adapter/adapter_model.safetensors", "checkpoint/state.safetensors", "metrics.json"):
        assert (warm / "first" / name).read_bytes() == (warm / "again" / name).read_bytes()
    state = json.loads((warm / "first/checkpoint/state.json").read_text())
    assert state == {"adapter": adapter_hash(warm / "first/adapter"), "steps": 0}
    reference = warm / "first/checkpoint/reference/adapter_model.safetensors"
    assert reference.read_bytes() == (warm / "first/adapter/adapter_model.safetensors").read_bytes()


def test_what_is_held_out_is_not_learnt_in_a_variation_either(
    warm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each demonstration repeats a number, by whose wording it and its variations are known."""
    lines = [
        {
            "messages": [
                {"role": "user", "content": f"{number * 'now '}say {5000 + number}"},
                {"role": "assistant", "content": f"{5000 + number}"},
            ]
        }
        for number in range(30)
    ]
    (tmp_path / "demonstrations.jsonl").write_text(
        "".join(f"{json.dumps(line)}\n" for line in [*lines, {"messages": []}])
    )
    taken: list[list[Any]] = []

    def train(trainer: Any, rows: list[Any], *others: Any) -> list[float]:
        taken.extend([rows, others[-1]])
        return [1.0]

    monkeypatch.setattr("addons.supervised.fine_tuning.fine_tune", train)
    counts = supervise(tmp_path, "open", warm / "checkpoint", Sft(demonstrations=("x",)))
    learnt, held_out = taken
    assert (counts["demonstrations"], counts["trained"], counts["held_out"], counts["left_out"]) == (
        31, 27, 3, {"the assistant says nothing in it": 1},
    )  # fmt: skip
    assert (counts["variations"], len(learnt), len(held_out)) == (27 * 7, 27 * 8, 3 * 8)
    wordings = [{len(row.ids) - sum(row.mask) for row in rows} for rows in (learnt, held_out)]
    assert (len(wordings[0]), len(wordings[1]), wordings[0] & wordings[1]) == (27, 3, set())


def test_demonstrations_that_are_all_no_use_are_a_sentence(warm: Path, tmp_path: Path) -> None:
    (tmp_path / "demonstrations.jsonl").write_text("no json\n")
    with pytest.raises(UserError, match=r"holds no demonstration to learn from: \{'it is no JSON': 1\}"):
        supervise(tmp_path, "none", warm / "checkpoint")
