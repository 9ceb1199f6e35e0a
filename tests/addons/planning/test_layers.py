"""An adapter of other layers than the policy's is refused by the number of its weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from addons.planning import plan
from steps.core.errors import UserError
from steps.core.params import Lora, Params, Policy
from tests.addons.starts.test_start import adapter
from tests.conftest import ROOT


@pytest.mark.parametrize(
    ("name", "place", "key"),
    [("policy", "policy", r"policy\.start_from"), ("opponent", "champion", r"rollout\.opponent")],
)
def test_other_layers_than_the_policys_are_refused_by_their_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, place: str, key: str
) -> None:
    """Where the base model's config.json is at hand: this adapter has one layer alone."""
    adapter(tmp_path / place)
    monkeypatch.chdir(ROOT)
    params = Params(policy=Policy(base_model="tasks_data/multiplication/policy", lora=Lora(rank=2, alpha=4)))
    plan.check_adapters(tmp_path, params, tmp_path)  # nothing says that an adapter is there
    (tmp_path / "origin.json").write_text(json.dumps({name: {"resolved": "it"}}))
    with pytest.raises(UserError, match=rf"{key}: it has 16 weights, in q_proj, and an adapter of .* has"):
        plan.check_adapters(tmp_path, params, tmp_path)
    unplanned = params.policy.model_copy(update={"base_model": "nobody/knows"})
    plan.check_adapters(tmp_path, params.model_copy(update={"policy": unplanned}), tmp_path)
