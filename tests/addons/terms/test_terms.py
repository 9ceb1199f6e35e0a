"""Terms of the loss beside GRPO's own: by hand, against TRL's and transformers', over a checkpoint, and refused where
nothing would read them. Their gradients are compared with TRL's in tests/training/test_options.py."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from addons.terms import entropy
from addons.terms.entropy import Entropy
from addons.terms.reference import Following
from steps.core.errors import UserError
from steps.core.params import Policy, Update
from steps.training import packing
from steps.training.grpo import Trainer
from steps.training.meter import Meter
from tests.support import tiny
from tests.support.tiny import LOOSE, moved, plain_logps, random_rows, relative, sampled_by, weights, with_advantages

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_weight_adapts_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing counts before an entropy is known; then it does where the step before was at the target or below."""
    import torch

    monkeypatch.setattr(entropy, "STEP", 0.25)
    monkeypatch.setattr(entropy, "MOST", 0.5)
    given = {"use_adaptive_entropy": True, "entropy_coef": 0.1, "entropy_target": 1.0}
    bonus = Entropy(Update.model_validate(given))
    bonus.tokens = 6.0
    batch = {"completion_mask": torch.ones(2, 3)}
    applied, kept = [], []
    for nats in (2.0, 1.0, 0.5, 0.9, 1.1):
        applied.append(bonus.weight_of(batch, 1.0))
        meter = Meter()
        meter.add("entropy_of_bonus", 6 * nats, 6.0)
        bonus.end(meter)
        kept.append(bonus.weight)
    assert kept == pytest.approx([0.0, 0.25, 0.5, 0.5, 0.25])
    assert applied == pytest.approx([0.0, 0.0, 0.25, 0.5, 0.5])


@pytest.mark.parametrize(
    "knobs",
    [
        {"use_adaptive_entropy": True, "entropy_coef": 0.1, "entropy_target": 9.0},
        {"beta": 0.05, "sync_ref_model": True, "ref_model_sync_steps": 3},
        {"adam_beta1": 0.5, "adam_beta2": 0.8},
    ],
    ids=str,
)
def test_going_on_from_a_checkpoint_is_going_on(policy: Policy, tmp_path: Path, knobs: dict[str, Any]) -> None:
    """What an option carries from update to update is in the checkpoint: the same bytes as without an interruption."""
    given = {"steps_per_generation": 2, "learning_rate": 0.02, "beta": 0.0, **LOOSE}
    update = Update.model_validate(given | knobs)
    whole, states = moved(Trainer(policy, seed=1)), []
    rows = sampled_by(whole.model, random_rows(12, seed=2), 1.0)
    examples = with_advantages(rows, sizes=[4, 4, 4])
    for number in range(3):
        whole.train(examples, update, 1.0, seed=number)
        whole.save_checkpoint(tmp_path / f"whole {number}", "a")
        states.append(deepcopy(files_of(tmp_path / f"whole {number}")))
    for number in range(2):
        resumed = Trainer(policy, checkpoint=tmp_path / f"whole {number}")
        resumed.train(examples, update, 1.0, seed=number + 1)
        resumed.save_checkpoint(tmp_path / f"resumed {number}", "a")
        assert files_of(tmp_path / f"resumed {number}") == states[number + 1]
    plain = Trainer(policy, checkpoint=tmp_path / "whole 0")
    plain.train(examples, Update.model_validate(given), 1.0, seed=1)
    plain.save_checkpoint(tmp_path / "plain", "a")
    assert files_of(tmp_path / "plain")["state.safetensors"] != states[1]["state.safetensors"]
    kept = files_of(tmp_path / "plain")
    assert kept.keys() == {"state.json", "state.safetensors"}, "an option that is off leaves nothing behind"
    assert b"entropy" not in kept["state.json"]


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def test_a_reference_that_follows_is_trls(policy: Policy, tmp_path: Path) -> None:
    """TRL mixes the weights of two whole models; here they are the adapters merged into their base."""
    import torch
    from trl.trainer.callbacks import SyncRefModelCallback

    def merged(trainer: Trainer, name: str) -> Any:
        return tiny.twin(trainer, tmp_path / name).merge_and_unload()

    base = tiny.twin(Trainer(policy, seed=1), tmp_path / "base").unload()
    trainer = moved(Trainer(policy, seed=1))
    given = {"beta": 0.1, "sync_ref_model": True, "ref_model_sync_steps": 1, "ref_model_mixup_alpha": 0.3}
    settings = Update.model_validate(given)
    following = Following(settings)
    following.begin(trainer, None)
    for number in range(3):
        moved(trainer, seed=number)
        following.stepped(trainer)
        SyncRefModelCallback._sync_target_model(merged(trainer, str(number)), base, 0.3)
    rows = random_rows(6, seed=5)
    packed = packing.pack(rows, *trainer.place)
    own = {name: value.detach().clone() for name, value in trainer.weights.items()}
    next_update = Following(settings)
    next_update.begin(trainer, following)
    trainer.terms = [next_update]
    found = trainer._reference(packed, settings, 0.7)
    assert all(torch.equal(value, own[name]) for name, value in trainer.weights.items())
    plain = [plain_logps(base, row, 0.7)[torch.tensor(row.mask[1:]).bool()] for row in rows]
    apart = [float((logps[: len(other)] - other).abs().max()) for logps, other in zip(found, plain, strict=True)]
    assert max(apart) < 1e-5
    with torch.no_grad(), trainer.model.disable_adapter():
        assert float((packing.token_logps(trainer.model, packed, 0.7)[0] - found).abs().max()) > 0.01


def test_an_update_has_the_reference_that_it_began_with(policy: Policy) -> None:
    """As in TRL, which takes the reference's logprobs when the batch is sampled."""
    given = {"beta": 0.5, "sync_ref_model": True, "steps_per_generation": 3, "learning_rate": 0.05, **LOOSE}
    kl = []
    for steps in (1, 1000):
        trainer = moved(Trainer(policy, seed=1))
        rows = sampled_by(trainer.model, random_rows(12, seed=2), 1.0)
        update = Update.model_validate(given | {"ref_model_sync_steps": steps})
        kl.append([trainer.train(with_advantages(rows), update, 1.0, seed=number)["kl"] for number in range(2)])
    assert kl[0][0] == kl[1][0]
    assert kl[0][1] < 0.8 * kl[1][1]


@pytest.fixture
def experts(tmp_path: Path) -> Policy:
    more = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
    return tiny.make_policy(tmp_path / "experts", family="Qwen3Moe", **more)


@pytest.mark.parametrize("tokens", [64, 100_000])
def test_the_routers_balance_is_that_of_transformers(
    experts: Policy, gradients: list[list[Any]], tmp_path: Path, tokens: int
) -> None:
    """Of all rows as one padded batch, whatever the micro-batches."""
    import torch

    given = {"beta": 0.0, "steps_per_generation": 1, "tokens_per_micro_batch": tokens, "learning_rate": 1e-12, **LOOSE}
    measured = {}
    for weight in (0.0, 0.7):
        trainer = moved(Trainer(experts, seed=1))
        rows = sampled_by(trainer.model, random_rows(24, 5, longest=20, alike=0.5), 1.0, noise=0.3)
        update = Update.model_validate(given | {"router_aux_loss_coef": weight})
        measured = trainer.train(with_advantages(rows, 5, sizes=[6, 6, 12]), update, 1.0, seed=9)
    model = tiny.twin(trainer, tmp_path / "twin", double=False)
    longest = max(len(row.ids) for row in rows)
    ids = torch.tensor([row.ids + [0] * (longest - len(row.ids)) for row in rows])
    mask = torch.tensor([[1] * len(row.ids) + [0] * (longest - len(row.ids)) for row in rows])
    expected = model(input_ids=ids, attention_mask=mask, output_router_logits=True).aux_loss
    assert measured["aux_loss"] == pytest.approx(expected.item(), rel=1e-5)
    apart = [(new - old) / 0.7 for old, new in zip(*gradients, strict=True)]
    assert relative(apart, torch.autograd.grad(expected, weights(model))) < 2e-5


def test_a_dense_model_has_no_balance(policy: Policy) -> None:
    trainer = moved(Trainer(policy, seed=1))
    with pytest.raises(UserError, match=r"router_aux_loss_coef would have no effect: qwen3 is no mixture of experts"):
        trainer.train(
            with_advantages(random_rows(4, 1)), Update.model_validate({"router_aux_loss_coef": 0.1}), 1.0, seed=1
        )


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"loss_type": "cispo", "delta": 2.0},
            "update.delta would have no effect: it is read with loss_type: grpo, dr_grpo",
        ),
        ({"delta": 1.2}, r"update.delta \(1.2\) must be above 1 \+ update.epsilon_high \(1.28\)"),
        (
            {"sapo_temperature_pos": 2.0},
            "update.sapo_temperature_pos would have no effect: it is read with loss_type: sapo",
        ),
        ({"vespo_k_neg": 2.0}, "update.vespo_k_neg would have no effect: it is read with loss_type: vespo alone"),
        (
            {"entropy_target": 0.3},
            "update.entropy_target would have no effect: it is read with use_adaptive_entropy: true",
        ),
        (
            {"sync_ref_model": True, "beta": 0},
            "update.sync_ref_model would have no effect: it is read with a beta above 0",
        ),
        (
            {"ref_model_sync_steps": 3},
            "update.ref_model_sync_steps would have no effect: it is read with sync_ref_model",
        ),
    ],
    ids=str,
)
def test_what_would_have_no_effect_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Update.model_validate(settings)
