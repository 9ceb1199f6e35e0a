"""Trainer and engine with the same tensors of the base model (policy.share_weights): vLLM's CPU engine, for real.

`python -m tests.addons.sharing.test_weights FOLDER share` prints what one process sampled and learnt with the model in
FOLDER/../base; without `share`, with a copy for each side.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from addons.sharing import weights as sharing
from steps.core.errors import UserError
from steps.core.params import Lora, Policy, Update
from tests.conftest import ROOT
from tests.support import families, tiny


def run(folder: Path, is_shared: bool) -> dict[str, Any]:
    """An update and samples of the adapter that it made, by a random Qwen2 with biases, a head of its own, and a vocabulary
    that vLLM pads."""
    import torch

    from steps.sampling import engine
    from steps.training.grpo import Trainer

    own = Policy(base_model=str(folder.parent / "base"), context=512, lora=Lora(rank=4, alpha=8), threads=1)
    policy = Policy.model_validate({**dict(own), "share_weights": is_shared})
    first = tiny.moved(Trainer(policy, seed=1))
    first.save_checkpoint(folder / "start", "")
    [model] = engine.get(policy).llm.apply_model(lambda model: model)
    counts = [within(first.model, model)]
    trainer = Trainer(policy, checkpoint=folder / "start")
    assert trainer.model is first.model
    rng = random.Random(5)
    rows = tiny.sampled_by(trainer.model, tiny.random_rows(8, seed=2), 1.0)
    trainer.train(
        tiny.with_advantages(rows), Update(**tiny.LOOSE, learning_rate=0.01, steps_per_generation=1), 1.0, seed=1
    )
    moments = {name: value["exp_avg"] for name, value in trainer.moments.items()}  # a tenth of the step's gradient
    torch.save(moments, folder / "moments.pt")
    adapter = trainer.save_adapter(folder / "adapter")
    prompts = [[rng.randrange(10, 2000) for _ in range(20)] for _ in range(4)]
    sampled = []
    for temperature in (1.0, 0.0):
        sampler = engine.EngineSampler(policy, folder / "adapter", temperature, max_tokens=16, stop=2)
        for key, prompt in enumerate(prompts):
            sampler.submit(key, prompt, seed=key)
        while sampler.pending:
            sampled += [(temperature, turn.key, turn.completion_ids) for turn in sampler.step()]
    counts.append(within(Trainer(policy, seed=2).model, model))  # another model, which finds the engine there
    return {"adapter": adapter, "sampled": sorted(sampled), "counts": counts}


def within(trained: Any, engine: Any) -> list[int]:
    """How many frozen tensors of the trainer lie in the memory of one of the engine's, and how many there are."""
    spans = [(value.data_ptr(), value.data_ptr() + value.nbytes) for value in engine.parameters() if value.nbytes]
    frozen = [value for value in trained.parameters() if not value.requires_grad]
    inside = [
        any(start <= value.data_ptr() and value.data_ptr() + value.nbytes <= end for start, end in spans)
        for value in frozen
    ]
    return [sum(inside), len(inside)]


def make(folder: Path) -> None:
    """families.py's Qwen2, with biases and norms that are not all zero or one."""
    import torch
    from transformers import AutoModelForCausalLM

    families.make("qwen2.5", folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        for value in model.parameters():
            value.add_(torch.randn(value.shape) * (0.1 if value.ndim == 1 else 0.0))
    model.save_pretrained(folder)


@pytest.mark.nightly  # two engines: a minute
@pytest.mark.timeout(900)
def test_an_update_with_the_engines_tensors_is_the_same(tmp_path: Path) -> None:
    """In processes of their own: each has one engine. Gradients, bit for bit, and the tokens that follow."""
    import torch

    results, moments = [], []
    make(tmp_path / "base")
    for words in ([], ["share"]):
        folder = tmp_path / "".join(["run", *words])
        folder.mkdir()
        done = subprocess.run(
            [sys.executable, "-m", "tests.addons.sharing.test_weights", os.fspath(folder), *words],
            cwd=folder, env=os.environ | {"PYTHONPATH": os.fspath(ROOT)}, capture_output=True, text=True, timeout=400,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-4000:]
        results.append(json.loads(done.stdout.splitlines()[-1]))
        moments.append(torch.load(folder / "moments.pt"))
    apart, shared = results
    assert all(float(value.abs().max()) > 0 for name, value in moments[0].items() if "lora_B" in name)
    assert moments[0].keys() == moments[1].keys()
    assert all(torch.equal(moments[0][name], moments[1][name]) for name in moments[0])
    assert shared["adapter"] == apart["adapter"]
    assert shared["sampled"] == apart["sampled"]
    assert [inside for inside, _ in apart["counts"]] == [0, 0]
    assert all(inside == count > 20 for inside, count in shared["counts"])


# --- What cannot be shared; the engine's model is a stand-in with the names that vLLM gives


def sides(tmp_path: Path, **changed: Any) -> tuple[Any, Any]:
    """A trainer's base, and an engine's model with copies of its tensors, fused and padded as vLLM does it."""
    import torch

    from addons.gpu import memory
    from steps.training.model import load_model

    base = memory.Base(load_model(tiny.make_policy(tmp_path)))
    mine = {
        re.sub(r"^base_model\.model\.|\.base_layer(?=\.)", "", name): value.data
        for name, value in base.model.named_parameters()
        if not value.requires_grad
    }
    theirs: dict[str, Any] = {}
    for name, value in mine.items():
        whole = re.sub(r"\.[qkv]_proj\.", ".qkv_proj.base_layer.", name)
        whole = re.sub(r"\.(gate|up)_proj\.", ".gate_up_proj.base_layer.", whole)
        theirs[whole] = torch.cat([*([theirs[whole]] if whole in theirs else []), value])
    embedding = "model.embed_tokens.weight"
    theirs[embedding] = torch.cat([theirs[embedding], torch.zeros(16, 16)])  # 48 words, padded to 64
    for name, change in changed.items():
        theirs[name.replace("__", ".")] = change(theirs[name.replace("__", ".")])
    parts = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}
    parameters = {name: torch.nn.Parameter(value, requires_grad=False) for name, value in theirs.items()}
    return base, SimpleNamespace(packed_modules_mapping=parts, named_parameters=parameters.items, values=parameters)


def test_parts_of_fused_tensors_are_views_and_nothing_leaves(tmp_path: Path) -> None:
    import torch

    base, engine = sides(tmp_path)
    before = {name: value.detach().clone() for name, value in base.model.named_parameters()}
    base.leave()  # as while an engine starts; then they come from host memory
    base.share(sharing.views(engine, base))
    assert not base.is_away
    after = dict(base.model.named_parameters())
    assert all(torch.equal(after[name], value) for name, value in before.items())
    layer = after["base_model.model.model.layers.1.self_attn.v_proj.base_layer.weight"]
    whole = engine.values["model.layers.1.self_attn.qkv_proj.base_layer.weight"]
    assert layer.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
    assert layer.data_ptr() == whole[24:].data_ptr(), "after 16 rows of the queries and 8 of the keys"
    pointers = [value.data_ptr() for value in base.model.parameters()]
    base.leave()
    base.come_back()
    assert [value.data_ptr() for value in base.model.parameters()] == pointers


QKV, DOWN = "model__layers__0__self_attn__qkv_proj__base_layer__weight", "model__layers__1__mlp__down_proj__weight"


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({QKV: lambda whole: whole[:0]}, r"q_proj\.weight .* has the shape \[0, 16\], and the trainer's \[16, 16\]"),
        ({QKV: lambda whole: whole.flip(0)}, r"layers\.0\.self_attn\.q_proj\.weight .* holds other numbers"),
        ({QKV: lambda whole: whole.bfloat16()}, r"is torch\.bfloat16, and the trainer's torch\.float32"),
        ({DOWN: lambda whole: whole.T.contiguous().T}, r"down_proj\.weight .* in another order in memory"),
        ({DOWN: lambda whole: whole.T.contiguous()}, r"has the shape \[16, 16\], and the trainer's \[16, 24\]"),
        ({DOWN: lambda whole: whole.nextafter(whole + 1)}, r"layers\.1\.mlp\.down_proj\.weight .* holds other numbers"),
    ],
)
def test_a_layout_that_differs_is_refused_before_anything_is_shared(
    tmp_path: Path, changed: dict[str, Any], problem: str
) -> None:
    base, engine = sides(tmp_path, **changed)
    pointers = [value.data_ptr() for value in base.frozen]
    with pytest.raises(UserError, match=problem) as refusal:
        sharing.views(engine, base)
    assert str(refusal.value).endswith("set policy.share_weights to false, and each has its own copy")
    assert [value.data_ptr() for value in base.frozen] == pointers


def test_a_tensor_that_the_engine_lacks_is_refused(tmp_path: Path) -> None:
    base, engine = sides(tmp_path)
    del engine.values["model.norm.weight"]
    with pytest.raises(
        UserError, match=r"cannot share model\.norm\.weight of .* the engine's model has no such tensor"
    ):
        sharing.views(engine, base)


if __name__ == "__main__":
    print(json.dumps(run(Path(sys.argv[1]), "share" in sys.argv)))
