"""Tiny random models that see, of the families Qwen2.5-VL and Qwen3-VL, pictures for them, and a task that shows some.

python -m tests.support.seeing FOLDER qwen2.5-vl               # sampler and trainer, as a line of JSON
python -m tests.support.seeing FOLDER qwen2.5-vl --stages 5 4  # 5 x 4 episodes of an agent through the stages
"""

from __future__ import annotations

import io
import json
import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from environments.base import Component, Env, Message, Scenario, Split
from environments.kit import pictures
from steps.core.params import Lora, Policy
from steps.core.pictures import Shown, filled
from steps.core.records import Row, Trajectory
from tests.support import templates

FAMILIES = ("qwen2.5-vl", "qwen3-vl")
SPECIAL = ("<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
TEXT: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 1024,
    "initializer_range": 0.2,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "bos_token_id": None,
}
TOWER: dict[str, Any] = {
    "depth": 2,
    "hidden_size": 32,
    "num_heads": 2,
    "intermediate_size": 48,
    "out_hidden_size": 64,
    "initializer_range": 0.2,
}


def make(family: str, folder: Path) -> Policy:
    """A random checkpoint with the family's chat template, special tokens and image processor, and a policy of it."""
    import torch
    import transformers as hf

    torch.manual_seed(0)
    own = family.replace("-", "_").replace(".", "_")
    named = templates.FAMILIES["qwen3-2507" if family == "qwen3-vl" else "qwen2.5"]
    tokenizer = templates.tokenizer(named._replace(special=SPECIAL), templates.template(own))
    names = ("image_pad", "video_pad", "vision_start", "vision_end")
    ids = {f"{name.replace('pad', 'token')}_id": tokenizer.convert_tokens_to_ids(f"<|{name}|>") for name in names}
    ids = {name if "token" in name else name.replace("_id", "_token_id"): value for name, value in ids.items()}
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": 1e6}
    text = TEXT | {"vocab_size": len(tokenizer)}
    if family == "qwen2.5-vl":
        text |= {"rope_parameters": rope | {"mrope_section": [4, 6, 6]}}
        tower = TOWER | {"patch_size": 14, "window_size": 56, "fullatt_block_indexes": [1]}
        config = hf.Qwen2_5_VLConfig(text_config=text, vision_config=tower, **ids)
        hf.Qwen2_5_VLForConditionalGeneration(config).save_pretrained(folder)
    else:
        text |= {"head_dim": 32, "rope_parameters": rope | {"mrope_section": [6, 5, 5], "mrope_interleaved": True}}
        tower = TOWER | {"patch_size": 16, "num_position_embeddings": 64, "deepstack_visual_indexes": [0]}
        config = hf.Qwen3VLConfig(text_config=text, vision_config=tower, **ids)
        hf.Qwen3VLForConditionalGeneration(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    side = tower["patch_size"]
    processor = {
        "image_processor_type": "Qwen2VLImageProcessorFast",
        "patch_size": side,
        "merge_size": 2,
        "temporal_patch_size": 2,
        "size": {"shortest_edge": (4 * side) ** 2, "longest_edge": (12 * side) ** 2},
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return Policy(base_model=str(folder), context=256, lora=Lora(rank=4, alpha=8))


def picture(number: int, width: int = 60, height: int = 90) -> bytes:
    """A PNG of blocks in random colours."""
    from PIL import Image

    rng = random.Random(number)
    small = Image.new("RGB", (4, 4))
    small.putdata([tuple(rng.randrange(256) for _ in range(3)) for _ in range(16)])
    file = io.BytesIO()
    small.resize((width, height), Image.Resampling.NEAREST).save(file, "PNG")
    return file.getvalue()


def asked(number: int, *parts: str) -> Message:
    """A message of the user: a picture between texts."""
    shown = pictures.checked(picture(number, 40 + 20 * (number % 3), 90))
    return {"role": "user"} | pictures.with_pictures([*parts[:1], shown, *parts[1:]])


class Colours(Env):
    """What is in the picture? A random model is rewarded for what it can do: letters of one kind."""

    max_turns = 2

    @classmethod
    def load(cls, folder: Path) -> None:
        return None

    @classmethod
    def scenarios(cls, data: None, split: Split, count: int, seed: int) -> list[Scenario]:
        start = {"train": 0, "val": 1000, "test": 2000}[split]
        numbers = range(start, start + count)
        return [
            Scenario.make("colours", split, [asked(number, "Look: ", "What is it?")], {"n": number})
            for number in numbers
        ]

    def hear(self, text: str) -> list[Message]:
        self.done = sum(message["role"] == "assistant" for message in self.scenario.messages) > 0
        return [{"role": "user", "content": "Say more."}]

    @classmethod
    def reward(cls, scenario: Scenario, messages: Sequence[Message]) -> list[Component]:
        text = "".join(str(message["content"]) for message in messages if message["role"] == "assistant")
        share = sum(letter in "aeiou" for letter in text) / max(len(text), 1)
        return [Component("vowels", share, "share of vowels")]


def stock(policy: Policy, adapter: Path) -> Any:
    """transformers and PEFT as they come, with a saved adapter, in float64."""
    import transformers
    from peft import PeftModel

    from steps.policy.loading import vision_of

    vision: Any = vision_of(policy)
    kind = getattr(transformers, vision.architecture)
    base = kind.from_pretrained(policy.base_model, attn_implementation="eager")
    return PeftModel.from_pretrained(base, adapter, is_trainable=True).double()


def plain_logps(model: Any, row: Row, vision: Any, temperature: float = 1.0) -> Any:
    """Logprobs [T-1] of a row's tokens from the second on, by the whole model's own forward pass, a row by itself."""
    import torch

    ids = torch.tensor([row.ids])
    more: dict[str, Any] = {}
    if row.pictures:
        kinds = torch.zeros_like(ids)
        for each in row.pictures:
            kinds[0, each.start : each.start + each.length] = 1
        features = [vision.of(each.sha256, each.data) for each in row.pictures]
        pixels, grids = (torch.cat([each[part] for each in features]) for part in (0, 1))
        more = {"pixel_values": pixels.double(), "image_grid_thw": grids, "mm_token_type_ids": kinds.int()}
    logits = model(input_ids=ids, **more).logits[0, :-1].double() / temperature
    return torch.log_softmax(logits, -1)[torch.arange(ids.shape[1] - 1), ids[0, 1:]]


def random_rows(policy: Policy, count: int, seed: int) -> list[Row]:
    """Rows of a text, none, one or two pictures, and sampled tokens with texts between; some begin alike. Some show other
    pictures in the same places."""
    from steps.policy.loading import load_vision

    vision: Any = load_vision(policy)
    assert vision is not None
    rng, rows = random.Random(seed), list[Row]()
    for number in range(count):
        ids, shown = [5, 6, 7], []
        for _ in range((0, 1, 2, 1)[number % 4]):
            name, data = pictures.checked(picture(rng.randrange(3)))
            length = vision.length(name, data)
            shown.append(Shown(len(ids), length, name, data))
            ids += [vision.token] * length + [rng.randrange(20, 23)]
        prompt = len(ids)
        ids += [rng.randrange(20, 500) for _ in range(rng.randrange(3, 9))]
        mask = [0] * prompt + [1] + [int(rng.random() < 0.7) for _ in ids[prompt + 1 :]]
        rows.append(Row(ids, mask, [0.0] * len(ids), pictures=tuple(shown)))
    return rows


def others(row: Row, rows: Sequence[Row]) -> tuple[Shown, ...]:
    """The row's places with another row's pictures of the same length, where there is one."""
    for other in rows:
        if other.pictures != row.pictures and [e.length for e in other.pictures] == [e.length for e in row.pictures]:
            pairs = zip(row.pictures, other.pictures, strict=True)
            return tuple(own._replace(sha256=each.sha256, data=each.data) for own, each in pairs)
    return row.pictures


def stray(policy: Policy, adapter: Path, played: Trajectory) -> Row:
    """A row sampled after the token of pictures where there is none, as a policy may write it itself."""
    from steps.sampling.engine import EngineSampler

    turn, [shown] = played.turns[0], filled(played.turns[0].pictures, played.pictures)
    ids = [*turn.prompt_ids, turn.prompt_ids[shown.start], 7]
    sampler = EngineSampler(policy, adapter, 1.0, 12, 2)
    sampler.submit(0, ids, seed=9, pictures=[shown])
    while not (done := sampler.step()):
        pass
    mask = [0] * len(ids) + [1] * len(done[0].completion_ids)
    return Row([*ids, *done[0].completion_ids], mask, [0.0] * len(ids) + list(done[0].logprobs), pictures=(shown,))


def main(family: str, folder: Path) -> dict[str, Any]:
    """A rollout, an update on it, and another rollout with the new adapter; how far sampler and trainer are apart."""
    from dataclasses import replace

    from steps.core.params import Rollout, Update
    from steps.policy.loading import load_chat, load_vision
    from steps.sampling import engine
    from steps.sampling.job import Job
    from steps.training import contract
    from steps.training.batches import Example
    from steps.training.grpo import Trainer
    from tests.support import tiny
    from tests.support.families import kl

    policy = make(family, folder / "base")
    trainer = tiny.moved(Trainer(policy, seed=1), size=0.05, seed=2)
    trainer.save_adapter(folder / "one")
    chat, vision = load_chat(policy, Colours), load_vision(policy)
    attempts = [(scenario, place) for scenario in Colours.scenarios(None, "train", 4, 0) for place in range(2)]
    limits, bias = Rollout(max_tokens=12), {chat.end: 12.0}
    job = Job(policy, limits, folder / "one", Colours, attempts, "x", 6, logit_bias=bias)
    played = engine.play(job)
    breaches = [contract.breach(each, each.flatten(), chat.end, len(chat.tokenizer)) for each in played]
    again = engine.play(job)
    fair = engine.play(replace(job, seed=7, logit_bias=None))
    rows = [row for each in fair for row in each.flatten()]
    rows.append(stray(policy, folder / "one", fair[0]))
    shifted = [row._replace(pictures=others(row, rows)) for row in rows]
    found = {"family": family, "kl": kl(trainer.model, rows, vision=vision), "rows": len(rows)}
    found["kl_of_others"] = kl(trainer.model, shifted, vision=vision)
    examples = [Example([row], random.Random(number).gauss(0, 1), str(number)) for number, row in enumerate(rows)]
    settings = Update(steps_per_generation=2, learning_rate=1e-2, max_kl=None)
    found["update_kl"] = trainer.train(examples, settings, 1.0, seed=5)["sampler_kl"]
    trainer.save_adapter(folder / "two")
    later = engine.play(replace(job, adapter=folder / "two", seed=8, logit_bias=None))
    found["kl_updated"] = kl(trainer.model, [row for each in later for row in each.flatten()], vision=vision)
    found["kl_stale"] = kl(trainer.model, rows, vision=vision)
    return found | {
        "turns": [len(each.turns) for each in played],
        "breaches": [reason for reason in breaches if reason],
        "same": played == again,
        "pictures": [len(turn.pictures) for each in played for turn in each.turns],
        "stored": sorted({name for each in played for name in each.pictures}),
    }


def write_task(folder: Path, count: int) -> None:
    """scenarios.jsonl of tests/support/agents/onlooker.py, and its pictures as files beside it."""
    lines = []
    for number in range(count):
        (folder / f"{number}.png").write_bytes(picture(number, 40 + 20 * (number % 3), 90))
        parts = [
            {"type": "text", "text": f"Number {number}: "},
            {"type": "image_url", "image_url": {"url": f"{number}.png"}},
            {"type": "text", "text": " What is it?"},
        ]
        lines.append(json.dumps({"messages": [{"role": "user", "content": parts}], "n": number}) + "\n")
    (folder / "scenarios.jsonl").write_text("".join(lines))


def stages(family: str, folder: Path, groups: int, attempts: int) -> dict[str, Any]:
    """groups x attempts episodes of the agent through the stages scenarios, initialise, rollout, score, update and evaluate,
    in this folder and this process; and rollout again, whose bytes must be the same."""
    from steps.core import params as p
    from steps.core.evaluations import Evaluation
    from steps.core.records import Trajectory, read_records
    from steps.evaluate import evaluate
    from steps.initialise import initialise
    from steps.rollout import rollout
    from steps.scenarios import scenarios
    from steps.score import score
    from steps.training import contract
    from steps.update import update

    task = "tests.support.agents.onlooker"
    policy = make(family, folder / "base").model_copy(update={"context": 192})
    (folder / "task").mkdir()
    write_task(folder / "task", 8 * groups)
    (folder / "rubric.md").write_text("Vowels.")
    common: dict[str, Any] = {"task": task, "seed": 1, "policy": policy}
    sampling = p.Rollout(scenarios=groups, attempts=attempts, max_tokens=12)
    wanted = p.Scenarios(train=groups, val=2, test=1)
    scenarios(folder / "task", folder / "scenarios", p.ScenariosParams(task=task, seed=1, scenarios=wanted))
    initialise(folder / "adapter", folder / "checkpoint", p.InitialiseParams(seed=1, policy=policy))
    given = p.RolloutParams(**common, rollout=sampling)
    for name in ("trajectories", "again"):
        rollout(folder / "task", folder / "scenarios", folder / "adapter", folder / f"{name}.parquet", "001", given)
    played = read_records(Trajectory, folder / "trajectories.parquet")
    rewards = folder / "rewards.parquet"
    score(
        folder / "rubric.md",
        folder / "scenarios",
        folder / "trajectories.parquet",
        rewards,
        p.ScoreParams(task=task, score=p.Score()),
    )
    learning = p.UpdateParams(**common, rollout=sampling, update=p.Update(learning_rate=1e-2, max_kl=None))
    made = (folder / "new_adapter", folder / "new_checkpoint", folder / "metrics.json")
    update(folder / "trajectories.parquet", rewards, folder / "checkpoint", *made, learning)
    looked = p.EvaluateParams(task=task, policy=policy, evaluate=p.Evaluate(max_tokens=12), score=p.Score())
    evaluate(folder / "task", folder / "scenarios", folder / "evaluation", looked, adapter=folder / "new_adapter")
    evaluated = Evaluation.model_validate_json((folder / "evaluation/summary.json").read_text())
    bytes_of = [(folder / f"{name}.parquet").read_bytes() for name in ("trajectories", "again")]
    rows = [row for each in played for row in each.flatten()]
    token = next(row.ids[row.pictures[0].start] for row in rows)
    return {
        "episodes": len(played),
        "errors": sorted({each.error for each in played if each.error}),
        "rows": len(rows),
        "pictures": sorted({len(turn.pictures) for each in played for turn in each.turns}),
        "bare": sum(len(turn.pictures) for each in played for turn in each.turns if not each.pictures),
        "breaches": [reason for each in played if (reason := contract.breach(each, each.flatten(), None, 10**6))][:3],
        "picture_tokens_with_loss": sum(
            any(row.mask[each.start : each.start + each.length]) for row in rows for each in row.pictures
        ),
        "picture_tokens": sum(row.ids.count(token) for row in rows),
        "same_bytes": bytes_of[0] == bytes_of[1],
        "bytes": len(bytes_of[0]),
        "metrics": json.loads((folder / "metrics.json").read_text()),
        "evaluated": evaluated.n,
    }


if __name__ == "__main__":
    where, family = Path(sys.argv[1]), sys.argv[2]
    if sys.argv[3:]:
        os.environ["PYTHONPATH"] = os.fspath(Path.cwd())  # for the gateway and the clients
        os.chdir(where)  # where the gateway's journal and log go
        print(json.dumps(stages(family, where, int(sys.argv[4]), int(sys.argv[5]))))
    else:
        print(json.dumps(main(family, where)))
