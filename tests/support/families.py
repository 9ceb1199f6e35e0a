"""Model families from random tiny checkpoints: vLLM samples with an adapter, the trainer agrees and updates, vLLM serves.

python -m tests.support.families FOLDER qwen3 llama3     # prints the results of each family as a line of JSON
"""

from __future__ import annotations

import json
import os
import random
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steps.core.params import Lora, Policy, Rollout, Update
from steps.core.records import Row
from tests.support import templates, tiny
from tests.support.lookup import Lookup

if TYPE_CHECKING:
    from steps.training.grpo import Trainer

ROOT = Path(__file__).parent.parent.parent
TEMPLATES = {"llama3": "llama3.1"}  # where a family of models has several templates
COMMON: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 2048,
    "initializer_range": 0.2,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "bos_token_id": None,
}


def config(family: str) -> Any:
    import transformers as hf

    if family == "qwen2.5":
        return hf.Qwen2Config(**COMMON, num_key_value_heads=1)
    if family in ("qwen3", "qwen3.5"):  # its template; the architecture, with linear attention, is another
        return hf.Qwen3Config(**COMMON, num_key_value_heads=1, head_dim=32)
    if family == "llama3":
        return hf.LlamaConfig(**COMMON, num_key_value_heads=1)
    if family == "kimi-k2":  # the architecture of DeepSeek-V3: latent attention, experts after the first layer
        return hf.DeepseekV3Config(
            **COMMON,
            num_key_value_heads=2,
            moe_intermediate_size=32,
            n_routed_experts=8,
            num_experts_per_tok=2,
            n_shared_experts=1,
            n_group=1,
            topk_group=1,
            first_k_dense_replace=1,
            q_lora_rank=32,
            kv_lora_rank=512,  # vLLM has kernels for these sizes alone
            qk_rope_head_dim=64,
            qk_nope_head_dim=128,
            v_head_dim=128,
            topk_method="noaux_tc",  # vLLM reads these two
            scoring_func="sigmoid",
        )
    raise ValueError(f"unknown family {family}")


def make(family: str, folder: Path) -> None:
    """A random checkpoint with the family's chat template and special tokens."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    tokenizer = templates.tokenizer(templates.FAMILIES[TEMPLATES.get(family, family)])
    made = config(family)
    made.vocab_size = len(tokenizer)
    AutoModelForCausalLM.from_config(made).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


PROMPTS = 4  # each with four attempts


def prompts(rng: random.Random) -> list[list[int]]:
    return [[rng.randrange(10, 2000) for _ in range(rng.randrange(5, 40))] for _ in range(PROMPTS)]


def sample(policy: Policy, adapter: Path, asked: list[list[int]], temperature: float, batch: int = 99) -> list[Row]:
    """Four attempts of vLLM at each prompt, in batches of so many requests."""
    from steps.sampling import engine
    from steps.sampling.turns import Sampled

    done: dict[int, Sampled] = {}
    for start in range(0, 4 * PROMPTS, batch):
        sampler = engine.EngineSampler(policy, adapter, temperature, max_tokens=12, stop=2)
        for key in range(start, min(start + batch, 4 * PROMPTS)):
            sampler.submit(key, asked[key // 4], seed=key)
        while sampler.pending:
            done |= {one.key: one for one in sampler.step()}
    rows = []
    for key in range(4 * PROMPTS):
        prompt, one = asked[key // 4], done[key]
        logprobs = list(one.logprobs) or [0.0] * len(one.completion_ids)
        ids = [*prompt, *one.completion_ids]
        rows.append(Row(ids, [0] * len(prompt) + [1] * len(one.completion_ids), [0.0] * len(prompt) + logprobs))
    return rows


def play(policy: Policy, adapter: Path) -> dict[str, Any]:
    """A rollout by vLLM in the family's own form. A random model writes no call; a bias makes it end its turns."""
    from steps.policy.loading import load_chat
    from steps.sampling import engine
    from steps.sampling.job import Job
    from steps.training import contract

    chat = load_chat(policy, Lookup)
    attempts = [(scenario, 0) for scenario in Lookup.scenarios(None, "train", 4, 1)]
    limits = Rollout(max_tokens=24)
    played = engine.play(Job(policy, limits, adapter, Lookup, attempts, "x", 6, logit_bias={chat.end: 16.0}))
    breaches = [contract.breach(one, one.flatten(), chat.end, len(chat.tokenizer)) for one in played]
    return {"turns": max(len(one.turns) for one in played), "breaches": [reason for reason in breaches if reason]}


def served(policy: Policy, adapter: Path) -> dict[str, Any]:
    """How vLLM's stock server, with the options of addons.production.serve, reads a call that the family's template
    writes."""
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.parser.parser_manager import ParserManager
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    from addons.production.serving.server import Server
    from steps.policy.loading import load_chat

    chat = load_chat(policy, Lookup)
    words = Server("127.0.0.1", 8000, "toy", "key").command(policy, adapter, chat)
    args = make_arg_parser(FlexibleArgumentParser()).parse_args(words[1:])
    validate_parsed_serve_args(args)
    reasoning = args.reasoning_parser or None
    parser = ParserManager.get_parser(args.tool_call_parser, reasoning, args.enable_auto_tool_choice)
    request = ChatCompletionRequest(messages=[{"role": "user", "content": ""}], tools=chat.tools, tool_choice="auto")
    function = {"name": "look", "arguments": {"text": 'naïve "東京"', "words": []}}
    turn = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
    text = chat.tokenizer.decode(chat.completion_ids(turn)[:-1])
    reader = parser(chat.tokenizer, request.tools, chat_template_kwargs=args.default_chat_template_kwargs or {})
    _, _, calls = reader.parse(text, request, enable_auto_tools=True)
    read = [{"name": call.name, "arguments": json.loads(call.arguments)} for call in calls or ()]
    return {"tool_parser": args.tool_call_parser, "reasoning_parser": reasoning, "read": read == [function]}


def under_grammars(policy: Policy, trainer: Trainer, adapter: Path, asked: list[list[int]]) -> dict[str, float]:
    """KL between vLLM and the trainer for turns under a JSON schema, and for forced calls: with the grammar replayed, and
    without, where it must be far from 0."""
    from steps.core.records import Trajectory, Turn
    from steps.sampling.engine import EngineSampler
    from steps.sampling.turns import Limits

    schema = {"type": "object", "properties": {"a": {"enum": ["x", "yy"]}, "b": {"type": "integer"}}, "required": ["a"]}
    call = {
        "type": "tag",
        "begin": '<call>{"a": ',
        "content": {"type": "json_schema", "json_schema": schema},
        "end": "}",
    }
    tag = json.dumps({"type": "structural_tag", "format": call})
    found = {}
    for limits in (Limits(40, schema=json.dumps(schema)), Limits(40, tag=tag)):
        kind = "tag" if limits.tag else "schema"
        sampler = EngineSampler(policy, adapter, 0.8, max_tokens=40, stop=2)
        for key in range(4 * PROMPTS):
            sampler.submit(key, asked[key // 4], seed=key, limits=limits)
        rows, grammar = [], json.dumps({kind: getattr(limits, kind), "ends": [2]})
        while sampler.pending:
            for key, ids, logprobs, reason, _ in sampler.step():
                made: dict[str, Any] = {"message": {"role": "assistant", "content": ""}, "observations": ()}
                made |= {"finish_reason": reason, "is_constrained": True, "grammar": grammar}
                turn = Turn(prompt_ids=tuple(asked[key // 4]), completion_ids=ids, logprobs=logprobs, **made)
                whole = dict[str, Any](id=str(key), scenario_id="any", attempt=0, adapter_hash="", stop_reason="done")
                rows += Trajectory(turns=(turn,), **whole).flatten()
        found[f"kl_{kind}"] = kl(trainer.model, rows, 0.8, trainer._grammars(rows))
        found[f"kl_{kind}_without"] = kl(trainer.model, rows, 0.8)
        found[f"choices_{kind}"] = sum(sum(row.mask) for row in rows)
    return found


def kl(model: Any, rows: list[Row], temperature: float = 1.0, grammars: Any = None, vision: Any = None) -> float:
    """KL between who sampled the rows and the model, nats a token."""
    import torch

    from steps.training import loss, packing

    with torch.no_grad():
        packed = packing.pack(rows, torch.float32, grammars=grammars, vision=vision)
        logps, _ = packing.token_logps(model, packed, temperature)
    old = [[x for x, is_sampled in zip(row.logprobs, row.mask, strict=True) if is_sampled] for row in rows]
    return loss.sampler_kl(logps, torch.tensor(packing.padded(old)), packed.mask) / float(packed.mask.sum())


def off(trainer: Trainer, adapter: Path, rows: list[Row]) -> float:
    """The largest difference between the trainer's logprobs of the rows' last three tokens and stock PEFT's."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from steps.training import packing

    stock = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(trainer.policy.base_model), adapter)
    with torch.no_grad():
        logps, _ = packing.token_logps(trainer.model, packing.pack(rows, torch.float32), 1.0)
        plain = [stock(input_ids=torch.tensor([row.ids])).logits[0, -4:-1].log_softmax(-1) for row in rows]
    expected = torch.stack([one[range(3), row.ids[-3:]] for one, row in zip(plain, rows, strict=True)])
    return float((logps - expected).abs().max())


def generated_alike(model: Any, rows: list[Row]) -> int:
    """How many rows Hugging Face generate completes with the same tokens, greedily."""
    import torch

    model.eval()
    same = 0
    for row in rows:
        count = sum(row.mask)
        with torch.no_grad():
            out = model.generate(
                input_ids=torch.tensor([row.ids[:-count]]),
                max_new_tokens=count,
                do_sample=False,
                eos_token_id=2,
                pad_token_id=0,
            )
        same += out[0].tolist() == row.ids
    return same


def main(family: str, folder: Path) -> dict[str, Any]:
    """Sample with an adapter, update on it, sample with the new one; where vLLM refuses, the trainer by itself."""
    from steps.core.errors import UserError
    from steps.training.batches import Example
    from steps.training.grpo import Trainer

    make(family, folder / "base")
    policy = Policy(base_model=str(folder / "base"), context=2048, lora=Lora(rank=8, alpha=16))
    trainer = tiny.moved(Trainer(policy, seed=1), size=0.05, seed=2)
    trainer.save_adapter(folder / "one")
    layers = sorted({name.partition(".lora_")[0].rpartition(".")[2] for name in trainer.weights})
    found: dict[str, Any] = {"family": family, "layers": layers, "served": served(policy, folder / "one")}
    rng = random.Random(3)
    asked = prompts(rng)
    try:
        rows = sample(policy, folder / "one", asked, 1.0)
    except UserError as refusal:
        found["refused"] = str(refusal)
        rows = [Row([*one, 7, 8, 2], [0] * len(one) + [1] * 3, [0.0] * (len(one) + 3)) for one in asked * 4]
    examples = [Example([row], rng.gauss(0, 1), str(number // 4)) for number, row in enumerate(rows)]
    update = Update(steps_per_generation=2, learning_rate=1e-2, max_sampler_kl=1e9, max_kl=None)
    found["kl"] = trainer.train(examples, update, 1.0, seed=5)["sampler_kl"]
    trainer.save_adapter(folder / "two")
    if "refused" in found:
        return found | {"off": off(trainer, folder / "two", rows)}
    found |= play(policy, folder / "two")
    found["kl_updated"] = kl(trainer.model, sample(policy, folder / "two", asked, 1.0))
    found["kl_stale"] = kl(trainer.model, rows)
    found |= under_grammars(policy, trainer, folder / "two", asked)
    apart = [sample(policy, folder / "one", asked, 1.0, batch) for batch in (99, 3, 1)]
    found["apart"] = [[row.ids for row in played] == [row.ids for row in rows] for played in apart]
    long = [(ids * 48)[:240] for ids in asked]  # more tokens than a step takes: prompts are computed in parts
    found["parts"] = [row.ids for row in sample(policy, folder / "one", long, 1.0)] == [
        row.ids
        for row in sample(policy, folder / "one", long, 1.0, 4)  # a prompt's attempts: fewer than a step takes
    ]
    found["long"] = 4 * sum(map(len, long))
    greedy = sample(policy, folder / "two", asked, 0.0)[::4]
    return found | {"greedy_same": generated_alike(trainer.model, greedy), "greedy": len(greedy)}


def each(folder: Path, families: list[str]) -> None:
    """Each family in a forked process of its own, since a process holds one engine; the imports are made once for all."""
    from steps.sampling import packages  # noqa: F401 (these imports take most of a family's time)
    from steps.training import grpo  # noqa: F401

    for family in families:
        sys.stdout.flush()
        if child := os.fork():
            os.waitpid(child, 0)
            continue
        try:
            (folder / family).mkdir()
            print(json.dumps(main(family, folder / family)), flush=True)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(0)


if __name__ == "__main__":
    each(Path(sys.argv[1]), sys.argv[2:])
