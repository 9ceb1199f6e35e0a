"""Loads the policy's tokenizer, chat and base model, and says which layers have an adapter."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steps.core.errors import UserError
from steps.core.imports import import_lean
from steps.core.ports import bring, names
from steps.core.section import at
from steps.policy import template_limits
from steps.policy.chat import Chat, rendered_turn
from steps.policy.formats import reasoning_parser
from steps.policy.machine import GPU, is_for_gpus

if TYPE_CHECKING:
    from environments.base import Env, Scenario
    from steps.core.params import Policy
    from steps.core.pictures import Vision

# A model that brings code of its own is refused: otherwise transformers asks on the terminal whether to run it.
NO_CODE = {"trust_remote_code": False}
FOLDERS = ("tasks_data", "run", "start", "models")  # of a project; no owner on the Hub
LARGEST = 256 * 2**20  # bytes of a tokenizer, an index or another file of JSON in a model's folder
LANGUAGE_MODEL = ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]  # of a model that sees
SMALL, USUAL, REASONING = 64, 512, 2048  # most tokens of a turn


def no_path(name: str, setting: str) -> None:
    """UserError where a name reads like a path and nothing is there: it is not looked up on the Hub, whose owner it would
    tell of this machine's folders."""
    path = Path(name)
    beside = path.parts[:1] and (path.parts[0] in FOLDERS or Path(path.parts[0]).is_dir())
    if path.exists() or not ("\\" in name or name[0] in "./~" or name[-1] == "/" or name.count("/") > 1 or beside):
        return
    raise UserError(
        f"{setting}: there is no {name} in {Path.cwd()}; run the command in the project's folder, or give the path from the "
        "root. A name on the Hugging Face Hub is <owner>/<name>"
    )


def check_folder(folder: Path) -> None:
    """UserError for a base model's folder that transformers would not read alone, or not in reasonable time."""
    if (folder / "adapter_config.json").is_file():  # transformers loads the base model that this names, from anywhere
        raise UserError(
            f"policy.base_model: {folder} holds an adapter; set policy.start_from to it, and policy.base_model to its base "
            "model"
        )
    for path in folder.glob("*.json"):
        if path.is_file() and path.stat().st_size > LARGEST:
            raise UserError(
                f"policy.base_model: {path} has more than {LARGEST // 2**20} MiB: it is no tokenizer's file"
            )


def local(policy: Policy) -> Policy:
    """The policy with a base model that transformers and vLLM load: of a GGUF file, the folder that it is converted to.
    UserError for a folder that is missing."""
    if not policy.is_gguf:
        no_path(policy.base_model, "policy.base_model")
        check_folder(Path(policy.base_model))
        return policy
    with explained(policy):
        folder = bring("weights", "gguf", "policy.base_model").converted(policy)
        return policy.model_copy(update={"base_model": str(folder), "revision": None})


def load_tokenizer(policy: Policy) -> Any:
    """The policy's tokenizer, with `policy.chat_template` if that is set. UserError where the base model cannot be loaded or
    has no chat template."""
    if at(policy, "needs_gpus"):
        bring("gpu", "device", GPU).check_gpus(policy)
    import_lean("transformers.models.auto.tokenization_auto")
    from transformers import AutoTokenizer

    base = local(policy)
    with explained(policy):
        tokenizer = AutoTokenizer.from_pretrained(base.base_model, revision=base.revision, **NO_CODE)
    if not tokenizer.encode("a", add_special_tokens=False):  # transformers makes an empty one where no file is
        raise UserError(
            f"policy.base_model: {policy.base_model} holds no tokenizer, which has a tokenizer.json as a rule"
        )
    if policy.chat_template:
        tokenizer.chat_template = chat_template(policy.chat_template)
    if not tokenizer.chat_template:
        raise UserError(
            f"policy.base_model: {policy.base_model} has no chat template, so it cannot be told about tools; use an "
            f"instruction-tuned model, or set policy.chat_template ({', '.join(names('template'))}, or a file)"
        )
    if "tasks_data" not in Path(policy.base_model).parts:  # the project's own are known
        given = tokenizer.chat_template
        for text in given.values() if isinstance(given, dict) else [given]:
            template_limits.check(text, policy.base_model)
    return tokenizer


def chat_template(name: str) -> str:
    """The chat template that an add-on brings by this name, or the text of the file. UserError where there is neither."""
    if name in names("template"):
        return str(bring("template", name, "policy.chat_template"))
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, ValueError) as problem:
        raise UserError(
            f"policy.chat_template: {name!r} is neither a file that can be read ({type(problem).__name__}) nor one of the "
            f"templates {', '.join(names('template'))}"
        ) from None


def config_of(policy: Policy) -> Any:
    """transformers' configuration of a base model that it loads (`local`)."""
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(policy.base_model, revision=policy.revision, trust_remote_code=False)


def vision_of(policy: Policy) -> Vision | None:
    """What reads pictures for a base model that transformers loads (`local`); None where no add-on sees for its kind."""
    from transformers import PreTrainedConfig

    fields, _ = PreTrainedConfig.get_config_dict(policy.base_model, revision=policy.revision)
    kind = fields.get("model_type", "")  # a folder without configuration has none
    return bring("vision", kind, "policy.base_model")(policy) if kind in names("vision") else None


def load_vision(policy: Policy) -> Vision | None:
    """What reads pictures for a policy that is shown them, else None."""
    if policy.kind != "vllm":
        return None
    base = local(policy)
    with explained(policy):
        return vision_of(base)


def blind(policy: Policy) -> str:
    """Why a policy is shown no pictures, and what to do: a sentence."""
    if policy.kind != "vllm":
        return f"pictures are shown by policy.kind: vllm alone, and it is {policy.kind}; set it to vllm"
    return (
        f"the policy ({policy.base_model}) sees no pictures; set policy.base_model to a model of the families "
        "Qwen2.5-VL or Qwen3-VL, or leave the pictures out"
    )


def check_sight(policy: Policy, scenarios: Iterable[Scenario], is_seeing: bool) -> None:
    """UserError where a scenario shows pictures and the policy sees none."""
    if not is_seeing and (shown := next((each for each in scenarios if each.pictures), None)):
        raise UserError(f"scenario {shown.id} shows a picture: {blind(policy)}")


def load_chat(policy: Policy, env: type[Env]) -> Chat:
    """What renders and reads a task for a policy. UserError where template or parsers do not fit the task's tools.

    Of several tasks it is that of the first with tools, which is enough to serve all of them; each is checked."""
    if of_several := [load_chat(policy, part) for part in env.task_classes.values()]:
        return next((chat for chat in of_several if chat.tools), of_several[0])
    tools = [tool.schema for tool in env.tools().values()]
    tokenizer, options = load_tokenizer(policy), policy.chat_template_kwargs
    parsers, sight = (policy.tool_parser, policy.reasoning_parser), (load_vision(policy), blind(policy))
    try:
        return Chat(tokenizer, tools, options, *parsers, *sight)
    except ValueError as problem:
        raise UserError(
            f"policy.base_model: {policy.base_model} cannot play this task, because {problem}. Set policy.tool_parser or "
            "policy.reasoning_parser to the name that vLLM gives this model's form, or policy.chat_template to a template "
            f"with tools: a file, or one of {', '.join(names('template'))} (docs/gpu.md)"
        ) from None


def turn_limit(policy: Policy, given: int | None) -> int:
    """The most tokens of a turn, for `rollout.max_tokens` or `evaluate.max_tokens`: a number as it is; null by the model.

    A model reasons first where its template begins a turn with reasoning, and nothing ends it at once. A quarter of the
    context is the most, or an episode of a few turns would not fit.
    """
    if given is not None:
        return given
    if "tasks_data" in Path(policy.base_model).parts:
        return SMALL
    prompt, turn = rendered_turn(load_tokenizer(policy), policy.chat_template_kwargs)
    return min(USUAL if reasoning_parser(prompt, turn, None) is None else REASONING, policy.context // 4)


def load_model(policy: Policy, device: str | None = None) -> Any:
    """The policy's base model for training, without an adapter, on `device` or on the GPU where there is one.

    Its weights are read straight into the GPU's memory."""
    if is_for_gpus() or at(policy, "needs_gpus"):
        gpu = bring("gpu", "device", GPU)
        gpu.check_build()
        gpu.check_gpus(policy)
    import_lean("torch", "transformers.models.auto.modeling_auto")
    import torch
    import transformers

    dtype, more = getattr(torch, policy.dtype), dict[str, Any](NO_CODE, use_safetensors=True)
    if is_quantized := at(policy, "quantization") is not None:
        more["quantization_config"] = bring("gpu", "device", GPU).four_bits(dtype)
    place = device or (torch.cuda.current_device() if torch.cuda.is_available() else "cpu")
    if is_quantized or place != "cpu":
        more["device_map"] = {"": place}
    base = local(policy)
    with explained(policy):
        if (vision := vision_of(base)) and is_quantized:
            raise ValueError("a model that sees is not read in 4 bits; take policy.quantization out")
        kind = getattr(transformers, vision.architecture if vision else "AutoModelForCausalLM")
        return kind.from_pretrained(base.base_model, revision=base.revision, dtype=dtype, **more)


def adapted_layers(config: Any) -> list[str] | None:
    """Which layers have the adapter: None for all linear ones; of a mixture of experts, those of its attention; of a model
    that sees, those of its language model: its vision tower stays as it is (steps/training/model.py).

    Experts are fused tensors, which PEFT adapts with other ranks and vLLM serves on GPUs only, if at all. vLLM's kernel of
    latent attention absorbs `kv_b_proj`, and would ignore its adapter.
    """
    if config.model_type in names("vision"):
        return LANGUAGE_MODEL
    config = config.get_text_config()
    if not any(getattr(config, name, None) for name in ("n_routed_experts", "num_experts", "num_local_experts")):
        return None
    latent = ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa"] if getattr(config, "kv_lora_rank", None) else []
    return sorted([*latent, "o_proj"] if latent else ["q_proj", "k_proj", "v_proj", "o_proj"])


@contextlib.contextmanager
def explained(policy: Policy) -> Iterator[None]:
    """Turns the many errors with which loading a model can fail into a UserError of one sentence."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as problem:
        reason = str(problem).strip().splitlines()[0][:200] if str(problem).strip() else type(problem).__name__
        raise UserError(
            f"policy.base_model: cannot load {policy.base_model!r} ({reason}); "
            "give a folder that holds a model, a GGUF file, or the name of a model on the Hugging Face Hub that this "
            "machine can reach"
        ) from problem
