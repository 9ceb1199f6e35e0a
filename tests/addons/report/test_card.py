"""The model card: a golden text, what is unknown, MLflow's limit, the verdict's section; all of it without a store."""

from __future__ import annotations

from typing import Any

import pytest

from addons.report import card
from addons.report.card import LIMIT, Recorded
from steps.core.evaluations import Evaluation
from steps.core.params import Params

TAGS = {
    "task": "toy",
    "adapter_hash": "0123456789abcdef",
    "base_model": "Qwen/Qwen2.5-7B-Instruct",
    "base_revision": "a09a354",
    "git_commit": "c" * 40,
    "git_dirty": "false",
    "dvc_lock": "feedfacefeedface",
}
GOLDEN = """\
This is a LoRA adapter (PEFT) for the task `toy`: an agent that calls the task's tools,
trained by reinforcement with agent-flywheel. It is no model by itself: it is added to the base model below.

## Model

| | |
|---|---|
| adapter | 0123456789abcdef |
| base model | Qwen/Qwen2.5-7B-Instruct |
| base revision | a09a354 |
| LoRA | rank 8, alpha 32, bfloat16 |

## Training

| | |
|---|---|
| method | GRPO, loss grpo, beta 0.02 |
| rewards | scaled by batch |
| learning rate | 2e-05, constant |
| iterations | 3 |
| an iteration | 16 scenarios, 4 attempts at each |
| judges | rule 0.5, ruler 1 (gpt-5-mini) |
| seed | 7 |

## Data

| | |
|---|---|
| scenarios, from the seed | 24 training, 12 validation, 30 test |
| contamination check | passed, 0 pairs too much alike |
| DVC md5 of run/scenarios | aaaa.dir |
| DVC md5 of run/003/trajectories.parquet | bbbb |

## Evaluation

| test split | success | 95 % interval | reward | turns | tokens | scenarios |
|---|---:|---|---:|---:|---:|---:|
| base policy | 0.200 | 0.100 to 0.370 | 0.100 | 3.500 | 41.250 | 30 scenarios, taken as independent |
| this adapter | 0.800 | 0.630 to 0.900 | 1.000 | 3.000 | 40.000 | 30 scenarios, taken as independent |

| slice, success | base policy | this adapter |
|---|---:|---:|
| month | not recorded | 0.900 |
| sender | 0.250 | 0.700 |

## Lineage

| | |
|---|---|
| git commit | cccccccccccccccccccccccccccccccccccccccc |
| changes that were not committed | no |
| digest of dvc.lock's entries | feedfacefeedface |
| MLflow run | 42 |

## Limits

Success is that on the task's own scenarios, generated from seeds: it says nothing of other data, users or tools.
The agent was rewarded by the judges above, and may have learnt what they like beside what was meant. Calls are
written as the base model's chat template writes them. It was not tested for harm: tools must guard themselves.
"""


def evaluation(success: float, ci95: tuple[float, float], **rest: Any) -> Evaluation:
    return Evaluation(split="test", adapter_hash="x", n=30, success=success, ci95=ci95, **rest)


def whole(**slices: float) -> str:
    params = Params.model_validate(
        {
            "task": "toy",
            "seed": 7,
            "policy": {"dtype": "bfloat16", "lora": {"rank": 8}},
            "scenarios": {"train": 24, "val": 12, "test": 30},
            "rollout": {"attempts": 4},
            "score": {"judges": {"rule": 0.5, "ruler": 1}, "ruler": {"endpoint": {"model": "gpt-5-mini"}}},
            "update": {"loss_type": "grpo", "beta": 0.02, "learning_rate": 2e-5, "scale_rewards": "batch"},
        }
    )
    hashes = {"run/scenarios": "aaaa.dir", "run/003/trajectories.parquet": "bbbb"}
    evaluations = {
        "base": evaluation(0.2, (0.1, 0.37), reward=0.1, turns=3.5, tokens=41.25, slices={"sender": 0.25}),
        "test": evaluation(
            0.8, (0.63, 0.9), reward=1, turns=3, tokens=40, slices={"sender": 0.7, "month": 0.9} | slices
        ),
    }
    report = {"passed": True, "found": {"content": 0, "source": 0}}
    return card.card(TAGS, Recorded(params, 3, hashes), evaluations, report, "42")


def test_a_card() -> None:
    assert whole() == GOLDEN
    assert whole() == GOLDEN, "the same values, the same text"


def test_what_is_unknown_says_so() -> None:
    text = card.card({"task": "toy", "test_success": "0.85", "test_ci95": "(0.79, 0.91)", "base_revision": "None"})
    for row in (
        "| this adapter | 0.850 | 0.790 to 0.910 | not recorded | not recorded | not recorded | not recorded |",
        "| base revision | not recorded |",
        "| learning rate | not recorded |",
        "| contamination check | not recorded |",
        "| DVC md5 of scenarios and trajectories | not recorded |",
        "| git commit | not recorded |",
        "| changes that were not committed | not recorded |",
        "| MLflow run | not recorded |",
    ):
        assert f"{row}\n" in text
    assert "None" not in text
    assert card.is_card(text)
    assert not card.is_card("test success 0.850, base policy 0.450, 240 scenarios")
    assert not card.is_card(None)


def test_a_failed_check_and_changes_are_not_hidden() -> None:
    text = card.card({"git_dirty": "true"}, contamination={"passed": False, "found": {"overlap": 3}})
    assert "| contamination check | NOT passed, 3 pairs too much alike |" in text
    assert "| changes that were not committed | yes |" in text


def test_text_of_others_stays_in_its_cell() -> None:
    assert "| base model | a\\|b c |" in card.card({"base_model": "a|b\n c"})


def test_the_limit_of_mlflow_is_kept() -> None:
    from mlflow.store.model_registry.dbmodels.models import SqlModelVersion

    assert SqlModelVersion.__table__.c.description.type.length == LIMIT
    many = whole(**{f"slice {number:03d}": 0.5 for number in range(100)})
    assert "| 90 more | | |" in many  # 102 slices, 12 rows
    assert len(many) <= LIMIT
    long = card.card(TAGS | {"base_model": "x" * 9000})
    assert len(long) == LIMIT or long.endswith("(Shortened: MLflow takes 5,000 characters.)\n")
    assert len(long) <= LIMIT
    both = card.with_verdict(long, "reason " * 2000)
    assert len(both) <= LIMIT
    assert card.VERDICT in both


def test_the_verdict_is_the_last_section_and_takes_the_place_of_an_earlier_one() -> None:
    first = card.with_verdict(GOLDEN, "**Not promoted**: no better.\n")
    assert first == GOLDEN + "\n## Verdict of the gate\n\n**Not promoted**: no better.\n"
    assert card.with_verdict(first, "**Not promoted**: no better.\n") == first
    assert (
        card.with_verdict(first, "**Promoted**: better.")
        == GOLDEN + "\n## Verdict of the gate\n\n**Promoted**: better.\n"
    )


@pytest.mark.parametrize("merged", [False, True])
def test_a_readme_for_a_hub(merged: bool) -> None:
    import yaml

    text = card.readme("toy, version 3", TAGS, GOLDEN, merged)
    _, head, body = text.split("---\n", 2)
    read = yaml.safe_load(head)
    assert read["base_model"] == "Qwen/Qwen2.5-7B-Instruct"
    assert read.get("library_name") == (None if merged else "peft")
    assert body.startswith("\n# toy, version 3\n")
    assert ("merged into its base model" in body) == merged
    assert text.endswith(GOLDEN)
