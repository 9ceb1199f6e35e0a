"""Every family's tool calls and reasoning, with the families' own templates: what is written is read back, and what is
malformed is named. See tests/support/templates.py for where the templates are from.
"""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest

from environments.base import Message
from steps.core.errors import UserError
from steps.core.params import Policy, Rollout
from steps.policy.chat import Chat
from steps.policy.formats import Format, form_of
from steps.policy.loading import load_chat, turn_limit
from steps.sampling import episodes
from steps.sampling.job import Job
from steps.sampling.turns import Sampled
from steps.training.contract import breach
from tests.support.lookup import Lookup
from tests.support.templates import FAMILIES, TEMPLATES, Family, tokenizer


def known(parser: str | None) -> Format:
    form = form_of(parser)
    assert form is not None
    return form


COUNTS = pytest.mark.parametrize("count", [40, pytest.param(400, marks=pytest.mark.nightly)])  # of random turns
KINDS = ("string", "integer", "number", "boolean", "array", "object")
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Does {name}.",
            "parameters": {
                "type": "object",
                "properties": {
                    f"{kind}_{place}": {"type": kind, "description": "x"} for place, kind in enumerate(KINDS)
                },
            },
        },
    }
    for name in ("search_emails", "read-mail", "f")
]
WORDS = [*"'\\{}[]:;\n\t a", '"', "naïve", "東京", "😀", "</b>", "42", "null", "&amp;", "é\u0301"]


def text(rng: random.Random) -> str:
    return "".join(rng.choices(WORDS, k=rng.randrange(8)))


def value(rng: random.Random, kind: str, depth: int = 0) -> Any:
    if kind == "array":
        return [value(rng, rng.choice(KINDS[: 6 if depth < 3 else 4]), depth + 1) for _ in range(rng.randrange(4))]
    if kind == "object":
        return {
            f"{text(rng)}{n}": value(rng, rng.choice(KINDS[: 6 if depth < 3 else 4]), depth + 1)
            for n in range(rng.randrange(4))
        }
    return {
        "string": text(rng),
        "integer": rng.randrange(-(10**6), 10**6),
        "number": rng.randrange(10**6) / 64 + 1 / 128,
        "boolean": rng.random() < 0.5,
    }[kind]


def calls(rng: random.Random, most: int) -> list[dict[str, Any]]:
    made = []
    for _ in range(rng.randint(1, most)):
        tool = rng.choice(TOOLS)["function"]
        names = [name for name in tool["parameters"]["properties"] if rng.random() < 0.6]
        function = {"name": tool["name"], "arguments": {name: value(rng, name.partition("_")[0]) for name in names}}
        made.append({"type": "function", "function": function})
    return made


def functions(message: Message) -> list[dict[str, Any]]:
    return [call["function"] for call in message.get("tool_calls", ())]


@pytest.fixture(scope="module")
def chats() -> dict[str, Chat]:
    return {name: Chat(tokenizer(family), TOOLS) for name, family in FAMILIES.items()}


@pytest.mark.parametrize("name", FAMILIES)
def test_the_parsers_are_found_from_the_template(chats: dict[str, Chat], name: str) -> None:
    family, chat = FAMILIES[name], chats[name]
    assert (chat.tool_parser, chat.reasoning_parser, chat.mark) == (
        family.tool_parser,
        family.reasoning_parser,
        family.end,
    )


@COUNTS
@pytest.mark.parametrize("name", FAMILIES)
def test_random_calls_are_rendered_and_read_back(chats: dict[str, Chat], name: str, count: int) -> None:
    """Nested arguments, unicode, quotes and several calls, as the template writes them; read, they give the same tokens."""
    family, chat, rng = FAMILIES[name], chats[name], random.Random(1)
    for _ in range(count):
        words = rng.choice(["", "Let me see.", "naïve 😀"]) if family.has_words else ""
        asked: Message = {"role": "assistant", "content": words, "tool_calls": calls(rng, family.calls)}
        if family.reasoning_parser and rng.random() < 0.5:
            asked["reasoning"] = asked["reasoning_content"] = "I wonder. 東京?"
        ids = chat.completion_ids(asked)
        read, problems = chat.parse(ids)
        assert (functions(read), problems) == (functions(asked), [])
        assert read["content"] == words
        assert read.get("reasoning") == asked.get("reasoning")
        again = read | ({"reasoning_content": read["reasoning"]} if "reasoning" in read else {})
        assert chat.completion_ids(again) == ids


@COUNTS
@pytest.mark.parametrize("name", FAMILIES)
def test_a_call_that_is_cut_off_is_malformed(chats: dict[str, Chat], name: str, count: int) -> None:
    """Whole calls before the cut count. vLLM's parsers would complete some of the last calls, or leave them out."""
    family, chat, rng = FAMILIES[name], chats[name], random.Random(2)
    form = known(family.tool_parser)
    for _ in range(count):
        asked: Message = {"role": "assistant", "content": "", "tool_calls": calls(rng, family.calls)}
        written = chat.tokenizer.decode(chat.completion_ids(asked)[:-1])
        cut = written[: rng.randrange(len(written))]
        read, problems = chat.parse(chat.tokenizer.encode(cut, add_special_tokens=False))
        whole = functions(read)
        assert whole == functions(asked)[: len(whole)]
        if len(re.findall(form.opening, cut)) > len(whole):  # the JSON of a call may be whole without its closing tag
            assert problems == [form.malformed]


MALFORMED = {
    "qwen3.5": [
        "<tool_call>\noops\n</tool_call>",
        '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>',
        "<tool_call>\n<function=>\n</function>\n</tool_call>",
        "<tool_call>\n<function=f>\n<parameter=string_0>\nx\n</parameter>\n</tool_call>",
        "<tool_call>",
    ],
    "kimi-k2": [
        "<|tool_calls_section_begin|>oops<|tool_calls_section_end|>",
        "<|tool_calls_section_begin|><|tool_call_begin|>f<|tool_call_argument_begin|>{}<|tool_call_end|>",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{oops<|tool_call_end|>",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}",
    ],
    "mistral-nemo": ["[TOOL_CALLS]oops", "[TOOL_CALLS][", '[TOOL_CALLS][{"name": "f", "arguments": {}'],
    "llama3.1": [
        '{"name": "f"}',
        "{}",
        '{"name": "f", "parameters": {',
        "<|python_tag|>f.call()",
        '{"name": 5, "parameters": {}}',
    ],
}


@pytest.mark.parametrize(("name", "turn"), [(name, turn) for name, turns in MALFORMED.items() for turn in turns])
def test_a_malformed_call_is_named_as_such(chats: dict[str, Chat], name: str, turn: str) -> None:
    chat = chats[name]
    said = turn if chat.reasoning_parser is None else f"Hm.\n</think>\n\n{turn}"
    read, problems = chat.parse([*chat.tokenizer.encode(said, add_special_tokens=False), chat.end])
    assert functions(read) == []
    assert problems == [known(chat.tool_parser).malformed]
    assert read["content"] == turn  # a reader of the transcript sees what was written


def test_a_good_call_beside_a_malformed_one_counts(chats: dict[str, Chat]) -> None:
    good = "<tool_call>\n<function=f>\n<parameter=string_0>\nx <tool_call> y\n</parameter>\n</function>\n</tool_call>"
    chat = chats["qwen3.5-small"]
    read, problems = chat.parse(
        chat.tokenizer.encode(f"<tool_call>\noops\n</tool_call>\n{good}", add_special_tokens=False)
    )
    assert functions(read) == [{"name": "f", "arguments": {"string_0": "x <tool_call> y"}}]
    assert len(problems) == 1


@pytest.mark.parametrize("name", FAMILIES)
def test_words_without_a_call_have_no_problem(chats: dict[str, Chat], name: str) -> None:
    chat = chats[name]
    said = (
        "The set {1, 2} is not it." if chat.reasoning_parser is None else "Hm.\n</think>\n\nThe set {1, 2} is not it."
    )
    read, problems = chat.parse([*chat.tokenizer.encode(said, add_special_tokens=False), chat.end])
    assert (read["content"], problems, functions(read)) == ("The set {1, 2} is not it.", [], [])


# --- Later turns


@pytest.mark.parametrize("name", FAMILIES)
def test_reasoning_stays_in_the_exact_tokens_of_later_turns(chats: dict[str, Chat], name: str) -> None:
    """What was sampled is never rendered again: odd tokens, reasoning and spaces are in the next prompt as they were."""
    chat = chats[name]
    prompt = chat.prompt_ids([{"role": "user", "content": "Which mail?"}])
    first = chat.completion_ids({"role": "assistant", "content": "", "tool_calls": calls(random.Random(3), 1)})
    odd = [chat.tokenizer.convert_tokens_to_ids(letter) for letter in "read"]  # the tokenizer would write one token
    thoughts = [*odd, *chat.tokenizer.encode("  hm \n</think>\n\n", add_special_tokens=False)]
    sampled = thoughts + first if chat.reasoning_parser else first
    read = chat.parse(sampled).message
    suffix = chat.suffix_ids([{"role": "tool", "name": "f", "content": "An answer."}], read)
    later = [*prompt, *sampled, *suffix]
    assert later[len(prompt) : len(prompt) + len(sampled)] == sampled
    assert "An answer." in chat.tokenizer.decode(suffix)
    if chat.reasoning_parser:
        assert read["reasoning"].startswith("read  hm")


@pytest.mark.parametrize("name", FAMILIES)
def test_the_suffix_is_what_the_template_renders(chats: dict[str, Chat], name: str) -> None:
    """After a real call of a real conversation, up to the point where the assistant begins again."""
    chat = chats[name]
    asked: Message = {"role": "assistant", "content": "", "tool_calls": calls(random.Random(4), 1)}
    read = chat.parse(chat.completion_ids(asked)).message
    answer: Message = {"role": "tool", "name": "f", "content": "An answer."}
    ids = [{"id": "call00000"} | call for call in read["tool_calls"]]
    told = [{"role": "user", "content": "Which?"}, read | {"tool_calls": ids}, answer | {"tool_call_id": ids[0]["id"]}]
    rendered = chat.tokenizer.apply_chat_template(told, tools=TOOLS, tokenize=False, add_generation_prompt=True)
    assert rendered.endswith(chat.tokenizer.decode(chat.suffix_ids([answer], read)))


def test_kimis_answers_name_the_ids_that_the_model_wrote(chats: dict[str, Chat]) -> None:
    chat = chats["kimi-k2-thinking"]
    written = chat.tokenizer.decode(
        chat.completion_ids({"role": "assistant", "content": "", "tool_calls": calls(random.Random(5), 3)})
    )
    written = re.sub(r":(\d)<", lambda match: f":{int(match[1]) + 7}<", written).removesuffix("<|im_end|>")
    read = chat.parse(chat.tokenizer.encode(written, add_special_tokens=False)).message
    names = [f"functions.{call['function']['name']}:{place + 7}" for place, call in enumerate(read["tool_calls"])]
    assert [call["id"] for call in read["tool_calls"]] == names
    answers = [{"role": "tool", "name": "", "content": f"Answer {place}"} for place in range(len(names))]
    suffix = chat.tokenizer.decode(chat.suffix_ids(answers, read))
    assert re.findall(r"## Return of (\S+)\n(.+?)<", suffix) == [
        (name, f"Answer {place}") for place, name in enumerate(names)
    ]
    named = [answer | {"tool_call_id": name} for answer, name in zip(answers, names, strict=True)]
    suffix = chat.tokenizer.decode(chat.suffix_ids(named[::-1], read))  # a client may answer in another order
    assert re.findall(r"## Return of (\S+)\n(.+?)<", suffix) == [
        (name, f"Answer {place}") for place, name in reversed(list(enumerate(names)))
    ]


@pytest.mark.parametrize("name", FAMILIES)
def test_an_observation_cannot_write_a_familys_special_tokens(chats: dict[str, Chat], name: str) -> None:
    family, chat = FAMILIES[name], chats[name]
    marks = [family.bos, family.end, *family.special, *(mark for mark in family.added if "|" in mark)]
    control = [chat.tokenizer.convert_tokens_to_ids(mark) for mark in filter(None, marks)]
    plain, hostile = (
        chat.suffix_ids([{"role": "tool", "name": "f", "content": content}]) for content in ("plain", " x ".join(marks))
    )
    assert {token: hostile.count(token) for token in control} == {token: plain.count(token) for token in control}


# --- The same as vLLM's


def outputs(rng: random.Random) -> str:
    """A turn as a policy might sample it: words and calls, of which some are damaged."""
    parts = []
    for _ in range(rng.randrange(4)):
        body = json.dumps(calls(rng, 1)[0]["function"], ensure_ascii=False)
        whole = rng.choice(["<tool_call>\n{}\n</tool_call>", "<tool_call>{}</tool_call>", "<tool_call>\n{}\n"]).replace(
            "{}", body
        )
        if rng.random() < 0.25:
            place = rng.randrange(len(whole))
            whole = whole[:place] + rng.choice(["", '"', "}", "x"]) + whole[place + 1 :]
        parts += [rng.choice(["", "\n", "Words. ", "naïve 😀"]), whole]
    return "".join(parts) + rng.choice(["", "\n", "The end."])


def vllms(
    chat: Chat, tool: str, reasoning: str | None, turn: str
) -> tuple[str | None, str | None, list[dict[str, Any]]]:
    """What a stock vLLM server makes of a turn."""
    import logging

    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.parser.parser_manager import ParserManager

    logging.getLogger("vllm.tool_parsers").setLevel(logging.CRITICAL)
    request = ChatCompletionRequest(messages=[{"role": "user", "content": ""}], tools=TOOLS, tool_choice="auto")
    parser = ParserManager.get_parser(tool, reasoning, True)(chat.tokenizer, request.tools, chat_template_kwargs={})
    thoughts, content, found = parser.parse(turn, request, enable_auto_tools=True)
    return thoughts, content, [{"name": call.name, "arguments": json.loads(call.arguments)} for call in found or ()]


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("qwen2.5", 200),
        ("qwen3", 100),
        pytest.param("qwen2.5", 2000, marks=pytest.mark.nightly),
    ],
)
def test_our_parser_of_tagged_calls_reads_as_vllms(chats: dict[str, Chat], name: str, count: int) -> None:
    """Random turns. Where a call is malformed, vLLM drops all calls of the turn; ours drops that one, and says so."""
    chat, rng, seen = chats[name], random.Random(6), {"calls": 0, "none": 0, "malformed": 0}
    for _ in range(count):
        turn = outputs(rng)
        if chat.reasoning_parser:
            turn = rng.choice(["<think>\nHm.\n</think>\n\n", "Hm.</think>", "Hm. ", ""]) + turn
        read, problems = chat.parse(chat.tokenizer.encode(turn, add_special_tokens=False))
        thoughts, content, theirs = vllms(chat, "hermes", chat.reasoning_parser, turn)
        assert (read.get("reasoning") or "") == (thoughts or "").strip()
        if problems:
            assert theirs == []
        else:
            assert functions(read) == theirs
        if not problems and not theirs:
            assert read["content"].strip() == (content or "").strip()
        seen["malformed" if problems else "calls" if theirs else "none"] += 1
    assert min(seen.values()) > count / 10, seen


# --- Refusals and settings


@pytest.mark.parametrize(
    ("name", "given", "sentence"),
    [
        ("qwen2.5", {"tool_parser": "llama3_json"}, "llama3_json cannot be used with the tokenizer"),
        ("qwen2.5", {"tool_parser": "qwen3_coder"}, "is not read back by vLLM's parser qwen3_coder"),
        ("qwen3.5", {"tool_parser": "hermes"}, "is not read back by vLLM's parser hermes"),
        ("llama3.1", {"tool_parser": "pythonic"}, "is not read back by vLLM's parser pythonic"),
        ("qwen2.5", {"tool_parser": "nonsense"}, "nonsense"),
        ("qwen2.5", {"reasoning_parser": "nonsense"}, "nonsense"),
        ("qwen2.5", {"reasoning_parser": "qwen3"}, "the reasoning of a turn is not read back"),
    ],
)
def test_parsers_that_do_not_fit_are_refused(name: str, given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Chat(tokenizer(FAMILIES[name]), TOOLS, **given)


def test_a_policy_is_refused_with_the_cure(tmp_path: Any) -> None:
    """Before anything is sampled, and before vLLM is started."""
    from environments.email_search import EmailSearch

    tokenizer(FAMILIES["qwen2.5"]).save_pretrained(tmp_path)
    assert load_chat(Policy(base_model=str(tmp_path)), EmailSearch).tool_parser == "hermes"
    with pytest.raises(
        UserError, match=r"cannot play this task, because .* Set policy.tool_parser or policy.reasoning_pars"
    ):
        load_chat(Policy(base_model=str(tmp_path), tool_parser="kimi_k2"), EmailSearch)
    (tmp_path / "mine.jinja").write_text("{{ messages[0].content }}")
    with pytest.raises(
        UserError, match=r"leaves out an assistant's turn: .* Set .*or policy.chat_template to a template with tools"
    ):
        load_chat(Policy(base_model=str(tmp_path), chat_template=str(tmp_path / "mine.jinja")), EmailSearch)
    with pytest.raises(
        UserError, match=r"'none.jinja' is neither a file .* nor one of the templates chatml, chatml-vision"
    ):
        load_chat(Policy(base_model=str(tmp_path), chat_template="none.jinja"), EmailSearch)


def test_another_parser_of_vllms_can_be_named() -> None:
    """LFM2 writes calls as Python does, which is not in our table."""
    marks = ("<|tool_call_start|>", "<|tool_call_end|>", "<|tool_list_start|>", "<|tool_list_end|>")
    made = tokenizer(Family("lfm2_v2", "lfm2", None, "<|im_end|>", "<|startoftext|>", marks))
    with pytest.raises(ValueError, match="writes a tool call in a form that is not known here"):
        Chat(made, TOOLS)
    chat = Chat(made, TOOLS, tool_parser="lfm2")
    asked: Message = {"role": "assistant", "content": "", "tool_calls": calls(random.Random(7), 3)}
    assert functions(chat.parse(chat.completion_ids(asked)).message) == functions(asked)
    cut = chat.tokenizer.encode('<|tool_call_start|>[f(string_0="x', add_special_tokens=False)
    read, problems = chat.parse(cut)
    assert (functions(read), len(problems)) == ([], 1)


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_templates_that_come_with_the_package_have_tools(name: str) -> None:
    """For models whose own template leaves them out: SmolLM2, Llama 3, Gemma 3, Mistral 7B."""
    bare = {
        "chatml": Family("", "hermes", None, "<|im_end|>"),
        "chatml-vision": Family("", "hermes", None, "<|im_end|>"),
        "llama3": FAMILIES["llama3.1"],
        "gemma": Family("", "hermes", None, "<end_of_turn>", "<bos>", ("<start_of_turn>",)),
        "mistral": Family("", "hermes", None, "</s>", "<s>"),
        "smollm2": Family("", "hermes", None, "<|im_end|>"),
    }[name]
    chat = Chat(tokenizer(bare, TEMPLATES[name]), TOOLS)
    assert (chat.tool_parser, chat.reasoning_parser, chat.mark) == ("hermes", None, bare.end)
    asked: Message = {"role": "assistant", "content": "Words.", "tool_calls": calls(random.Random(8), 3)}
    told: list[Message] = [{"role": "system", "content": "You help."}, {"role": "user", "content": "Which?"}]
    answers = [{"role": "tool", "name": "f", "content": "One."}, {"role": "tool", "name": "f", "content": "Two."}]
    ids = [*chat.prompt_ids(told), *chat.completion_ids(asked), *chat.suffix_ids(answers)]
    assert chat.parse(chat.completion_ids(asked)) == (asked, [])
    whole = chat.tokenizer.apply_chat_template(
        [*told, asked, *answers], tools=TOOLS, tokenize=False, add_generation_prompt=True
    )
    assert chat.tokenizer.decode(ids) == whole
    assert all(text in whole for text in ("You help.", "Which?", "search_emails", "One.", "Two."))


@pytest.mark.parametrize(
    ("name", "options", "limit"),
    [
        ("qwen2.5", {}, 512),
        ("qwen3", {}, 2048),
        ("qwen3", {"enable_thinking": False}, 512),
        ("qwen3.5", {}, 2048),
        ("qwen3.5-small", {}, 512),
        ("qwen3.5-small", {"enable_thinking": True}, 2048),
        ("llama3.2", {}, 512),
        ("kimi-k2-thinking", {}, 2048),
    ],
)
def test_the_limit_of_a_turn_by_model(name: str, options: dict[str, Any], limit: int, tmp_path: Any) -> None:
    tokenizer(FAMILIES[name]).save_pretrained(tmp_path)
    policy = Policy(base_model=str(tmp_path), context=16384, chat_template_kwargs=options)
    assert turn_limit(policy, None) == limit
    assert turn_limit(policy, 77) == 77
    assert turn_limit(policy.model_copy(update={"context": 1024}), None) == 256


def test_the_limit_of_a_turn_of_the_embedded_policies() -> None:
    assert turn_limit(Policy(), None) == turn_limit(Policy(base_model="/x/tasks_data/tic_tac_toe/policy"), None) == 64


def test_a_template_is_told_its_arguments_when_its_turns_are_read() -> None:
    """Without thinking, nothing of a turn is reasoning."""
    chat = Chat(tokenizer(FAMILIES["qwen3.5"]), TOOLS, {"enable_thinking": False})
    assert chat.reasoning_parser is None
    read, problems = chat.parse([*chat.tokenizer.encode("It is 12.", add_special_tokens=False), chat.end])
    assert (read, problems) == ({"role": "assistant", "content": "It is 12."}, [])


# --- Episodes


class FakeSampler:
    """Stands in for vLLM: its turns are given, as token ids."""

    def __init__(self, turns: list[list[int]]) -> None:
        self.turns, self.asked, self.prompts = iter(turns), list[int](), list[list[int]]()

    @property
    def pending(self) -> int:
        return len(self.asked)

    def submit(self, key: int, prompt_ids: list[int], seed: int) -> None:
        self.asked.append(key)
        self.prompts.append(prompt_ids)

    def step(self) -> list[Any]:
        ids = tuple(next(self.turns))
        return [Sampled(self.asked.pop(0), ids, (-1.0,) * len(ids), "stop")]


@pytest.mark.parametrize("name", FAMILIES)
def test_an_episode_is_played_in_the_form_of_each_family(name: str) -> None:
    """A call, words without one, and a malformed call: the environment hears each, and prompts only grow."""
    chat = Chat(tokenizer(FAMILIES[name]), [entry.schema for entry in Lookup.tools().values()])
    function = {"name": "look", "arguments": {"text": '"naïve"\n東京', "words": ["a", "b, c"]}}
    call = chat.completion_ids(
        {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
    )
    thought = "Hm.\n</think>\n\n" if chat.reasoning_parser else ""
    words = [*chat.tokenizer.encode(f"{thought}I do not know.", add_special_tokens=False), chat.end]
    turns = [call, words, [*call[: len(call) * 3 // 4], chat.end]]
    sampler = FakeSampler(turns)
    [scenario] = Lookup.scenarios(None, "train", 1, 1)
    job = Job(Policy(context=4096), Rollout(max_tokens=8), None, Lookup, [(scenario, 0)], "x", 1)
    [played] = episodes.play(job, sampler, {"": chat})
    first, second, third = played.turns
    assert (played.stop_reason, played.error) == ("max_turns", None)
    assert first.message["tool_calls"][0]["function"] == function
    assert [message["content"] for message in first.observations] == ["looked for 2 words"]
    hint = known(chat.tool_parser).hint
    assert [message["content"] for message in second.observations] == [f"Error: no tool was called; call one {hint}."]
    malformed = known(chat.tool_parser).malformed
    assert [message["content"] for message in third.observations] == [f"Error: {malformed}."]
    assert breach(played, played.flatten(), chat.end, len(chat.tokenizer)) is None
    assert len(played.flatten()) == 1  # nothing was tokenised again
