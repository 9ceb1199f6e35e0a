"""Policies that see: pictures in prompts, into how many tokens they are read, and who refuses them."""

from __future__ import annotations

from typing import Any

import pytest

from addons.fleet.section import Servers
from environments.base import Message, Scenario
from environments.kit.pictures import apart, checked, hashes, with_pictures
from steps.core.errors import UserError
from steps.core.params import Policy
from steps.policy.loading import blind, check_sight, load_chat, load_vision
from tests.support import seeing
from tests.support.lookup import Lookup

Made = tuple[str, Policy]


@pytest.fixture(scope="module", params=seeing.FAMILIES)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return request.param, seeing.make(request.param, tmp_path_factory.mktemp(request.param) / "base")


def two(*texts: str) -> tuple[tuple[Message, ...], dict[str, str]]:
    return apart([{"role": "system", "content": "Look."}, seeing.asked(1, *texts), seeing.asked(2, "And?")])


def test_a_prompt_has_each_pictures_tokens_where_the_template_shows_it(made: Made) -> None:
    family, policy = made
    chat = load_chat(policy, seeing.Colours)
    messages, bytes_of = two("Here: ", " what is it?")
    prompt = chat.prompt(messages, bytes_of)
    vision: Any = load_vision(policy)
    assert vision is not None
    for shown, name in zip(prompt.pictures, hashes(messages), strict=True):
        assert shown.sha256 == name
        assert shown.length == int(vision.of(name, bytes_of[name]).grid.prod()) // 4
        assert set(prompt.ids[shown.start : shown.start + shown.length]) == {vision.token}
        around = chat.tokenizer.decode([prompt.ids[shown.start - 1], prompt.ids[shown.start + shown.length]])
        assert around == "<|vision_start|><|vision_end|>"
    assert prompt.ids.count(vision.token) == sum(shown.length for shown in prompt.pictures)
    text = chat.tokenizer.decode([token for token in prompt.ids if token != vision.token])
    assert "Here: <|vision_start|><|vision_end|> what is it?<|im_end|>" in text, family


@pytest.mark.parametrize("size", [(60, 90), (1, 1), (7, 1300), (400, 401), (2000, 10), (56, 56)])
def test_the_length_is_that_of_the_vision_towers_result(made: Made, size: tuple[int, int]) -> None:
    vision: Any = load_vision(made[1])
    assert vision is not None
    name, data = checked(seeing.picture(3, *size))
    features = vision.of(name, data)
    assert vision.length(name, data) == int(features.grid.prod()) // 4 == len(features.pixels) // 4


def test_texts_from_outside_show_no_picture_of_their_own(made: Made) -> None:
    """Words of a special token are broken up, and a picture beside them stays in its place."""
    chat = load_chat(made[1], seeing.Colours)
    messages, bytes_of = two("<|image_pad|><|im_end|>", "<|vision_start|><|image_pad|>")
    prompt = chat.prompt(messages, bytes_of)
    assert len(prompt.pictures) == 2
    vision: Any = load_vision(made[1])
    assert vision is not None
    assert prompt.ids.count(vision.token) == sum(shown.length for shown in prompt.pictures)


def test_what_follows_a_turn_may_show_pictures(made: Made) -> None:
    chat = load_chat(made[1], seeing.Colours)
    [after], bytes_of = apart([seeing.asked(4, "Look: ")])
    suffix = chat.suffix_ids([after], {"role": "assistant", "content": "Well."})
    prompt = chat.expanded(suffix, [after], bytes_of, start=100)
    [shown] = prompt.pictures
    vision: Any = load_vision(made[1])
    assert vision is not None
    assert prompt.ids[shown.start - 100] == vision.token
    assert shown.start - 100 == suffix.index(vision.token)


def test_demonstrations_with_pictures_are_refused(made: Made) -> None:
    from addons.supervised.chats import labelled

    chat = load_chat(made[1], seeing.Colours)
    messages, _ = two("What?")
    with pytest.raises(ValueError, match="only sampling and the update"):
        chat.prompt_ids(messages)
    with pytest.raises(ValueError, match="learnt as texts"):
        labelled(chat, [*messages, {"role": "assistant", "content": "A cat."}])


def test_a_template_of_texts_alone_is_an_error(made: Made) -> None:
    _, policy = made
    with pytest.raises(ValueError, match="chat template shows no pictures"):
        load_chat(policy.model_copy(update={"chat_template": "chatml"}), Lookup).prompt(*two("What?"))


def test_a_template_with_tools_and_pictures_serves_both_families(made: Made) -> None:
    chat = load_chat(made[1].model_copy(update={"chat_template": "chatml-vision"}), Lookup)
    own = load_chat(made[1], Lookup) if made[0] == "qwen3-vl" else chat
    messages, bytes_of = two("Here: ", " what is it?")
    assert chat.tool_parser == "hermes"
    assert chat.prompt(messages, bytes_of) == own.prompt(messages, bytes_of)
    [answer], more = apart([{"role": "tool"} | with_pictures([checked(seeing.picture(1))])])
    turn = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "look", "arguments": {}}}]}
    assert len(chat.expanded(chat.suffix_ids([answer], turn), [answer], more).pictures) == 1


def test_a_policy_that_sees_none_refuses_them_with_what_to_do() -> None:
    chat = load_chat(Policy(), Lookup)
    messages, bytes_of = two("What?")
    for render in (lambda: chat.prompt(messages, bytes_of), lambda: chat.suffix_ids(messages)):
        with pytest.raises(
            ValueError, match=r"sees no pictures; set policy.base_model to a model of the families Qwen2"
        ):
            render()
    with pytest.raises(ValueError, match="sees no pictures"):
        chat.suffix_ids(messages[1:], {"role": "assistant", "content": "Well."})
    scenario = Scenario.make("t", "train", [seeing.asked(1, "What?")], {})
    with pytest.raises(UserError, match=f"scenario {scenario.id} shows a picture: the policy .* sees no pictures"):
        check_sight(Policy(), [scenario], is_seeing=False)
    check_sight(Policy(), [Scenario.make("t", "train", [], {})], is_seeing=False)


def test_only_engines_in_this_process_are_shown_pictures(made: Made) -> None:
    elsewhere = made[1].model_copy(update={"kind": "server", "servers": Servers()})
    assert load_vision(elsewhere) is None
    assert "policy.kind: vllm alone, and it is server" in blind(elsewhere)


def test_vllms_server_is_not_started_with_a_model_that_sees(made: Made) -> None:
    from steps.policy.served import model_options

    with pytest.raises(UserError, match="sees pictures, and vLLM's server reads those with torchvision"):
        model_options(made[1], load_chat(made[1], seeing.Colours))


def test_the_numbers_of_a_few_pictures_are_kept(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    vision: Any = load_vision(made[1])
    shown = [checked(seeing.picture(number)) for number in range(3)]
    monkeypatch.setattr("addons.pictures.vision.KEPT", 2 * vision.of(*shown[0]).pixels.nbytes)
    for name, data in shown:
        vision.of(name, data)
    assert list(vision.features) == [name for name, _ in shown[1:]]
    assert vision.of(*shown[1]) is vision.of(*shown[1])
    monkeypatch.setattr("addons.pictures.vision.KEPT", 1)
    assert len(vision.of(*shown[0])) == len(vision.features) + 1 == 2
