"""support_dialogue: the policy as a table, the customer's rules, each breach by name, and the reward by hand."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

import environments
from environments.base import Message, Scenario, Split, is_error, split_of, use, words
from environments.support_dialogue import SupportDialogue
from environments.support_dialogue.customer import GONE, asked_for, claims, opening, refuses, says_day, settles_day
from environments.support_dialogue.rewards import NEEDED_TURNS, REWARD, RULES
from environments.support_dialogue.shop import KINDS, VARIANTS, Record, expected, judge, make_case
from tests.conftest import ROOT

FOLDER = ROOT / "tasks_data" / "support_dialogue"
SPLITS: tuple[Split, ...] = ("train", "val", "test")
SHOP = SupportDialogue.load(FOLDER)


def item(name: str, price: int, sale: str = "normal", size: str = "") -> Record:
    return {"name": name, "price": price, "sale": sale, "size": size, "sizes": ["S", "M", "L"] if size else []}


def case(**changes: Any) -> Record:
    """Amara Dunn's case: a wool coat for 120, delivered 20 days ago; a lamp in another order that is on its way."""
    amara = {"name": "Amara Dunn", "postcode": "NB4821", "address": "3 Oak Street, Eastham"}
    bruno = {"name": "Bruno Weber", "postcode": "KL1111", "address": "9 Mill Lane, Marlow"}
    coat, lamp = item("wool coat", 120, size="M"), item("desk lamp", 35)
    first = {
        "order": "111111",
        "customer": 0,
        "status": "delivered",
        "ordered": "2024-05-06",
        "delivered": "2024-05-11",
    }
    second = {"order": "222222", "customer": 1, "status": "shipped", "ordered": "2024-05-29", "arrives": "2024-06-03"}
    orders = [
        first | {"items": [coat, lamp], "address": amara["address"]},
        second | {"items": [lamp], "address": bruno["address"]},
    ]
    made: Record = {
        "kind": "refund",
        "difficulty": 2,
        "seed": 7,
        "today": "2024-05-31",
        "who": "honest",
        "variant": "fine",
        "customers": [amara, bruno],
        "orders": orders,
        "wish": {"action": "refund", "order": "111111", "item": "wool coat"},
        "reason": "I do not like it",
        "postcodes": ["NB4821"],
        "insists": 0,
    } | changes
    return made | {"expected": expected(made)}


def delivered(day: str, *items: Record) -> list[Record]:
    orders = case()["orders"]
    return [orders[0] | {"delivered": day} | ({"items": list(items)} if items else {}), orders[1]]


def play(made: Record, *turns: Message) -> tuple[Scenario, list[Message], SupportDialogue]:
    scenario = SupportDialogue.from_case("train", made)
    env = SupportDialogue(scenario, None)
    messages = list(scenario.messages)
    for turn in turns:
        messages.append(turn)
        messages += env.step(turn)
    return scenario, messages, env


def scored(made: Record, *turns: Message) -> dict[str, float]:
    scenario, messages, _ = play(made, *turns)
    return {part.name: round(part.value, 6) for part in SupportDialogue.reward(scenario, messages)}


def verify(name: str = "Amara Dunn", postcode: str = "NB4821") -> Message:
    return use("verify_identity", name=name, postcode=postcode)


ASK = words("Could you please tell me your name, your order number, your postcode and the reason?")
LOOK = use("find_order", order="111111")
REFUND = use("refund", order="111111", amount=120)
TELL = words("I have refunded 120 dollars.")
SORRY = words("I am sorry, but this is not possible.")
CLOSE = use("close", summary="done")
CHECKED = (ASK, verify(), LOOK)
GOOD = {"goal": 1.0, "verified": 0.05, "looked": 0.05}


# --- Scenarios


def test_the_same_seed_gives_the_same_scenarios_of_all_kinds() -> None:
    first, again, other = (SupportDialogue.scenarios(SHOP, "val", 62, seed) for seed in (1, 1, 2))
    assert first == again != other
    assert len({one.id for one in first}) == 62
    assert sorted(Counter(one.data["kind"] for one in first).values()) == [10, 10, 10, 10, 11, 11]
    assert {one.data["difficulty"] for one in first} == {1, 2, 3, 4, 5}


def test_splits_are_by_what_the_customer_says_first_and_share_nothing() -> None:
    said, cases = dict[str, set[str]](), dict[str, set[str]]()
    for split in SPLITS:
        scenarios = SupportDialogue.scenarios(SHOP, split, 120, 4)
        assert all(split_of(opening(one.data)) == split for one in scenarios)
        said[split] = {str(one.messages[1]["content"]) for one in scenarios}
        cases[split] = {
            json.dumps([one.data[key] for key in ("kind", "customers", "orders", "wish")]) for one in scenarios
        }
        assert len(cases[split]) == 120
    for found in (said, cases):
        assert not found["train"] & found["val"] | found["test"] & (found["train"] | found["val"])


def test_too_many_scenarios_is_an_error_that_says_how_many_there_are() -> None:
    with pytest.raises(
        ValueError, match=r"^9000 scenarios need 1500 cases of the kind refund, .* has 4\d\d in the split"
    ):
        SupportDialogue.scenarios(SHOP, "val", 9000, 1)


def test_a_missing_file_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"shop\.json is missing: restore it"):
        SupportDialogue.load(tmp_path)


def test_the_policy_sees_nothing_that_it_must_ask_for() -> None:
    for scenario in SupportDialogue.scenarios(SHOP, "test", 120, 1):
        data = scenario.data
        text = json.dumps(scenario.messages)
        for hidden in (*(one["address"] for one in data["customers"]), data["expected"].get("day", "none")):
            assert hidden not in text
        assert data["today"] in text
        code = data["customers"][0]["postcode"]
        assert (code in text) == (data["difficulty"] == 1 and data["kind"] != "complaint")


def test_every_variant_occurs_and_refusals_too() -> None:
    cases = [make_case(SHOP, kind, number) for kind in KINDS for number in range(120)]
    assert {(one["kind"], one["variant"]) for one in cases} == {(k, v) for k, many in VARIANTS.items() for v in many}
    for kind in KINDS[:-1]:
        refused = sum(one["expected"]["action"] == "refuse" for one in cases if one["kind"] == kind)
        assert 10 < refused < 90
    assert {one["who"] for one in cases} == {"honest", "typo", "impostor", "other"}
    for one in cases:
        wanted = next(order for order in one["orders"] if order["order"] == one["wish"]["order"])
        prices = [each["price"] for each in wanted["items"]]
        assert len(set(prices)) == len(prices)


def test_the_task_is_found_by_name_and_has_its_tools() -> None:
    assert environments.load("support_dialogue") is SupportDialogue
    names = "find_order verify_identity refund exchange change_address cancel_order escalate close"
    assert list(SupportDialogue.tools()) == names.split()


# --- The policy


TODAY = "2024-05-31"


@pytest.mark.parametrize(
    ("kind", "day", "price", "sale", "damaged", "verdict"),
    [
        ("refund", "2024-05-01", 120, "normal", False, "allowed"),  # 30 days
        ("refund", "2024-04-30", 120, "normal", False, "refuse"),  # 31
        ("refund", "2024-04-30", 120, "normal", True, "allowed"),
        ("refund", "2024-03-02", 120, "normal", True, "allowed"),  # 90
        ("refund", "2024-03-01", 120, "normal", True, "refuse"),  # 91
        ("refund", "2024-05-20", 200, "normal", False, "allowed"),
        ("refund", "2024-05-20", 201, "normal", False, "escalate"),
        ("refund", "2024-04-30", 201, "normal", False, "refuse"),
        ("refund", "2024-04-30", 201, "normal", True, "escalate"),
        ("refund", "2024-05-20", 40, "gift card", False, "refuse"),
        ("refund", "2024-05-20", 40, "gift card", True, "refuse"),
        ("refund", "2024-05-20", 40, "final sale", False, "refuse"),
        ("refund", "2024-05-20", 40, "final sale", True, "allowed"),
        ("exchange", "2024-05-01", 300, "normal", False, "allowed"),
        ("exchange", "2024-04-30", 40, "normal", True, "refuse"),
        ("exchange", "2024-05-20", 40, "final sale", True, "refuse"),
    ],
)
def test_refunds_and_exchanges(kind: str, day: str, price: int, sale: str, damaged: bool, verdict: str) -> None:
    order = {"order": "1", "status": "delivered", "delivered": day}
    assert judge(kind, order, item("coat", price, sale), TODAY, damaged) == verdict


@pytest.mark.parametrize("kind", ["address", "cancel"])
@pytest.mark.parametrize(
    ("status", "verdict"), [("processing", "allowed"), ("shipped", "refuse"), ("delivered", "refuse")]
)
def test_changes_before_shipping_only(kind: str, status: str, verdict: str) -> None:
    assert judge(kind, {"status": status}, item("coat", 1), TODAY, False) == verdict


def test_who_asks_decides_too() -> None:
    assert case()["expected"] == {"action": "refund", "order": "111111", "amount": 120}
    assert case(who="impostor")["expected"] == case(who="other")["expected"] == {"action": "refuse"}
    assert case(who="typo")["expected"]["action"] == "refund"
    assert case(kind="complaint", variant="staff")["expected"] == {"action": "escalate"}


# --- The customer


@pytest.mark.parametrize(
    ("text", "details"),
    [
        ("What is your name?", ["name"]),
        ("Please tell me your order number and your post code.", ["order", "postcode"]),
        ("I need to verify your identity, may I have your details?", ["name", "order", "postcode"]),
        ("Could you tell me what is wrong with it?", ["reason"]),
        ("Was it damaged?", ["reason"]),
        ("Which size would you like?", ["size"]),
        ("What's the new address?", ["address"]),
        ("Your name is noted.", []),
        ("I cannot refund the order number 1, please understand.", []),
        ("Thank you!", []),
        ("", []),
    ],
)
def test_what_is_asked_for(text: str, details: list[str]) -> None:
    assert asked_for(text) == details


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("I am sorry, we can't do that.", True),
        ("Unfortunately it is not possible. Is there anything else?", True),
        ("I can’t refund it. Would you like another size?", True),
        ("I cannot find you. What is your postcode?", False),
        ("I have refunded it.", False),
    ],
)
def test_what_is_a_refusal(text: str, refused: bool) -> None:
    assert refuses(text) == refused


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("I have refunded 120 dollars.", {"refund"}),
        ("Your refund has been issued.", {"refund"}),
        ("Your order has now been checked.", set()),
        ("I've cancelled it and the address was changed.", {"cancel", "address"}),
        ("The order has been canceled.", {"cancel"}),
        ("It has not been refunded.", set()),
        ("Once I have refunded it, you will get a mail.", set()),
        ("Items are refunded within 30 days.", set()),
        ("I've escalated this.", {"escalate"}),
    ],
)
def test_what_is_claimed(text: str, said: set[str]) -> None:
    assert claims(text) == said


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("It arrives on 2024-06-03.", True),
        ("on June 3", True),
        ("on Jun. 3rd, 2024", True),
        ("the 3rd of June", True),
        ("3 June", True),
        ("06/03/2024", True),
        ("3.6.2024", True),
        ("June 30", False),
        ("13 June", False),
        ("2024-06-04", False),
        ("soon", False),
    ],
)
def test_saying_a_day(text: str, named: bool) -> None:
    assert says_day(text, "2024-06-03") == named
    assert not says_day(text, "")


def test_the_customer_gives_what_is_asked_for() -> None:
    _, messages, _ = play(case(), words("What is your name?"), ASK)
    assert messages[-3] == {"role": "user", "content": "My name is Amara Dunn."}
    said = "My name is Amara Dunn. The order is 111111. My postcode is NB4821. I do not like it."
    assert messages[-1]["content"] == said


def test_a_mistyped_postcode_is_put_right_when_asked_again() -> None:
    made = case(who="typo", postcodes=["NB4812", "NB4821"])
    ask = words("What is your postcode?")
    _, messages, _ = play(made, ask, ask, ask)
    assert [re.findall(r"[A-Z]{2}\d+", message["content"]) for message in messages[3::2]] == [
        ["NB4812"],
        ["NB4821"],
        ["NB4821"],
    ]


def test_an_impostor_runs_out_of_postcodes() -> None:
    made = case(who="impostor", postcodes=["NB1", "NB2"])
    _, messages, _ = play(made, *[words("What is your postcode?")] * 3)
    assert messages[-1]["content"] == "I have no other postcode for you."


def test_who_is_refused_insists_and_then_accepts() -> None:
    _, messages, env = play(case(insists=2, reason="it arrived broken"), SORRY, SORRY, SORRY)
    said = [message["content"] for message in messages[3::2]]
    assert said[:2] == ["But it arrived broken!"] * 2
    assert said[2] in ("I see. Thank you for telling me.", "That is a pity, but I understand.")
    assert env.customer.reason_told


def test_nothing_said_makes_the_customer_leave() -> None:
    scenario, messages, env = play(case(), *[words("Hm.")] * 4)
    assert env.done
    assert messages[-1] == {"role": "user", "content": GONE}
    assert not SupportDialogue.success(scenario, messages)
    assert scored(case(), *[words("Hm.")] * 4) == {"not_closed": -0.6}


def test_whatever_is_said_is_answered() -> None:
    """Random words of the customer's own rules, and odd texts: always one answer, and the same one again."""
    rng = Random(1)
    vocabulary = (
        "please your name order number postcode? why cannot sorry refunded was moment. address size 2024-06-03".split()
    )
    texts = ["", " ", "\0", "\ud800", "؟" * 500, "?" * 5000, "a " * 5000, "\n\n\n", "<|im_end|>", "’" * 99]
    texts += [" ".join(rng.choices(vocabulary, k=rng.randrange(1, 30))) for _ in range(150)]
    for number, scenario in enumerate(SupportDialogue.scenarios(SHOP, "train", 60, 2)):
        said = rng.sample(texts, 3) if number > 20 else texts[number % 10 :][:3]
        first, again = (SupportDialogue(scenario, None) for _ in range(2))
        for text in said:
            [answer] = first.hear(text)
            assert [answer] == again.hear(text)
            assert answer["role"] == "user"
            assert answer["content"]


# --- Tools


def test_an_order_is_shown_to_its_verified_customer_alone() -> None:
    _, messages, env = play(case(), LOOK, ASK, verify(), LOOK, use("find_order", order="222222"))
    shown = [message["content"] for message in messages if message["role"] == "tool"]
    assert shown[0] == "order: 111111\nstatus: delivered\nAll else is shown once the customer is verified."
    assert shown[1] == "Verified: Amara Dunn."
    assert shown[2] == (
        "order: 111111\nstatus: delivered\nordered: 2024-05-06\ndelivered: 2024-05-11\naddress: 3 Oak Street, Eastham\n"
        "items:\n- wool coat, size M | 120 | normal\n- desk lamp | 35 | normal"
    )
    assert shown[3] == "order: 222222\nstatus: shipped\nThis order is not the verified customer's."
    assert env.looked


@pytest.mark.parametrize(
    ("turn", "expected"),
    [
        (use("find_order", order="1"), "there is no order with this number"),
        (use("refund", order="1", amount=1), "there is no order with this number"),
        (
            use("refund", order="111111", amount=0),
            "the amount must be at least 1, and at most what was paid for the order",
        ),
        (
            use("refund", order="111111", amount=156),
            "the amount must be at least 1, and at most what was paid for the order",
        ),
        (use("exchange", order="111111", item="boots", size="M"), "there is no such item in this order"),
        (use("exchange", order="111111", item="wool coat", size="XXL"), "this item's sizes are: S, M, L"),
        (use("exchange", order="111111", item="desk lamp", size="M"), "this item's sizes are: none"),
        (use("change_address", order="111111", address=" "), "the address must hold a street and a town"),
        (use("escalate", reason="fire"), "the reason must be said in a few words"),
        (use("close", summary=" "), "the summary must not be empty"),
    ],
)
def test_impossible_calls_are_errors_and_break_no_rule(turn: Message, expected: str) -> None:
    _, messages, env = play(case(), turn)
    assert messages[-1]["content"] == f"Error: {expected}."
    assert not env.acts
    assert not env.done
    assert +env.counts == {}


def test_nothing_is_done_twice() -> None:
    _, messages, _ = play(case(), *CHECKED, REFUND, REFUND)
    assert messages[-1]["content"] == "Error: this was done already."


# --- Reward


def test_a_refund_by_the_book() -> None:
    turns = (*CHECKED, REFUND, TELL, CLOSE)
    assert scored(case(), *turns) == GOOD
    scenario, messages, _ = play(case(), *turns)
    assert SupportDialogue.success(scenario, messages)


# changes to the case, turns, and what is earned beside GOOD (None: not GOOD)
BREACHES: list[tuple[str, Record, tuple[Message, ...], dict[str, float]]] = [
    ("not verified", {}, (REFUND, CLOSE), {"goal": 1.0, "unverified": -0.8}),
    ("not verified, an impostor", {"who": "impostor"}, (REFUND, CLOSE), {"no_goal": -0.5, "unverified": -0.8}),
    (
        "another's order",
        {},
        (*CHECKED, use("cancel_order", order="222222"), CLOSE),
        {"no_goal": -0.5, "unverified": -0.8, "shipped": -0.3, "unasked": -0.3, "verified": 0.05, "looked": 0.05},
    ),
    (
        "late",
        {"orders": delivered("2024-04-30")},
        (*CHECKED, REFUND, CLOSE),
        {"no_goal": -0.5, "late": -0.3, "verified": 0.05, "looked": 0.05},
    ),
    (
        "final sale",
        {"orders": delivered("2024-05-11", item("wool coat", 120, "final sale"))},
        (*CHECKED, REFUND, CLOSE),
        {"no_goal": -0.5, "excluded": -0.3, "verified": 0.05, "looked": 0.05},
    ),
    (
        "above the limit",
        {"orders": delivered("2024-05-11", item("wool coat", 250))},
        (*CHECKED, use("refund", order="111111", amount=250), CLOSE),
        {"no_goal": -0.5, "over_limit": -0.3, "verified": 0.05, "looked": 0.05},
    ),
    (
        "half the price",
        {},
        (*CHECKED, use("refund", order="111111", amount=60), CLOSE),
        {"no_goal": -0.5, "wrong_amount": -0.3, "verified": 0.05, "looked": 0.05},
    ),
    (
        "the other item",
        {},
        (*CHECKED, use("refund", order="111111", amount=35), CLOSE),
        {"no_goal": -0.5, "unasked": -0.3, "verified": 0.05, "looked": 0.05},
    ),
    (
        "exchanged instead",
        {},
        (*CHECKED, use("exchange", order="111111", item="wool coat", size="L"), CLOSE),
        {"no_goal": -0.5, "unasked": -0.3, "verified": 0.05, "looked": 0.05},
    ),
    (
        "escalated for nothing",
        {},
        (*CHECKED, use("escalate", reason="wants a refund"), CLOSE),
        {"no_goal": -0.5, "needless_escalation": -0.3, "verified": 0.05, "looked": 0.05},
    ),
    ("told what was not done", {}, (*CHECKED, TELL, REFUND, CLOSE), GOOD | {"false_claim": -0.3}),
    ("refused before a look", {}, (SORRY, CLOSE), {"no_goal": -0.5, "unfounded": -0.2}),
    (
        "refused with no polite word",
        {"orders": delivered("2024-04-30")},
        (*CHECKED, words("No, this is not possible."), CLOSE),
        {"no_goal": -0.5, "curt": -0.1, "verified": 0.05, "looked": 0.05},
    ),
    ("refused what is due", {}, (*CHECKED, SORRY, CLOSE), {"no_goal": -0.5, "verified": 0.05, "looked": 0.05}),
    ("a made-up postcode", {}, (verify(), LOOK, REFUND, CLOSE), GOOD | {"made_up": -0.2}),
    (
        "a third check",
        {"postcodes": ["NB1"]},
        (ASK, verify(postcode="NB1"), verify(postcode="NB1"), verify(postcode="NB1"), CLOSE),
        {"no_goal": -0.5, "further_check": -0.2},
    ),
    ("never closed", {}, (*CHECKED, REFUND), {"not_closed": -0.6, "verified": 0.05, "looked": 0.05}),
    ("a made-up order", {}, (use("find_order", order="9"), *CHECKED, REFUND, CLOSE), GOOD | {"error": -0.1}),
]


@pytest.mark.parametrize(("changes", "turns", "parts"), [row[1:] for row in BREACHES], ids=[row[0] for row in BREACHES])
def test_each_breach_is_a_named_penalty(changes: Record, turns: tuple[Message, ...], parts: dict[str, float]) -> None:
    assert scored(case(**changes), *turns) == parts
    scenario, messages, _ = play(case(**changes), *turns)
    broken = set(parts) & set(RULES)
    assert SupportDialogue.success(scenario, messages) == ("goal" in parts and not broken)
    assert sum(parts.values()) < sum(GOOD.values())


def test_every_rule_is_in_the_table() -> None:
    assert {name for _, _, _, parts in BREACHES for name in parts} == set(REWARD) - {"turn"}


@pytest.mark.parametrize(
    ("changes", "turns"),
    [
        ({"orders": delivered("2024-04-30")}, (*CHECKED, SORRY, CLOSE)),  # late
        ({"orders": delivered("2024-04-30"), "reason": "it arrived broken"}, (*CHECKED, REFUND, TELL, CLOSE)),
        (
            {"orders": delivered("2024-05-11", item("wool coat", 250))},
            (*CHECKED, use("escalate", reason="250 are due"), CLOSE),
        ),
        (
            {"who": "typo", "postcodes": ["NB4812", "NB4821"]},
            (ASK, verify(postcode="NB4812"), words("Please check your postcode."), verify(), LOOK, REFUND, CLOSE),
        ),
        (
            {"kind": "exchange", "wish": {"action": "exchange", "order": "111111", "item": "wool coat", "size": "L"}},
            (*CHECKED, use("exchange", order="111111", item="Wool coat", size="l"), CLOSE),
        ),
    ],
    ids=["late", "late and damaged", "large", "typo", "exchange"],
)
def test_other_ways_that_earn_it_all(changes: Record, turns: tuple[Message, ...]) -> None:
    assert scored(case(**changes), *turns) == GOOD


def test_damage_counts_once_it_was_said() -> None:
    made = case(orders=delivered("2024-04-30"), reason="it arrived broken")
    silent = words("Could you please tell me your name and your postcode?")
    assert scored(made, silent, verify(), LOOK, REFUND, CLOSE) == GOOD | {"late": -0.3}


def test_impostors_are_refused_after_two_checks() -> None:
    made = case(who="impostor", postcodes=["NB1", "NB2"])
    again = words("This does not match. Please check your postcode.")
    turns = (ASK, verify(postcode="NB1"), again, verify(postcode="NB2"), SORRY, CLOSE)
    assert scored(made, *turns) == {"goal": 1.0}
    early = (ASK, verify(postcode="NB1"), SORRY, CLOSE)
    assert scored(made, *early) == {"no_goal": -0.5, "unfounded": -0.2}


@pytest.mark.parametrize(
    ("name", "postcode"),
    [("a", "1"), ("", ""), ("Amara", "NB4821"), ("Dunn", "NB"), ("Amara Dunn", "4821"), ("Bruno Weber", "NB4821")],
)
def test_parts_of_what_was_said_are_no_check(name: str, postcode: str) -> None:
    """Letters out of the customer's sentences once passed as two failed checks, after which every refusal was right."""
    for made in (case(orders=delivered("2024-04-30")), case(who="impostor", postcodes=["NB1", "NB2"])):
        turns = (ASK, verify(name, postcode), verify(name, postcode), SORRY, CLOSE)
        assert scored(made, *turns) == {"no_goal": -0.5, "made_up": -0.4, "unfounded": -0.2}
        unasked = (verify(name, postcode), verify(name, postcode), SORRY, CLOSE)
        assert not SupportDialogue.success(*play(made, *unasked)[:2])


def test_the_same_check_twice_is_one_failed_check() -> None:
    made = case(who="typo", postcodes=["NB4812", "NB4821"], orders=delivered("2024-04-30"))
    turns = (ASK, verify(postcode="NB4812"), verify(postcode="nb 4812"), SORRY, CLOSE)
    assert scored(made, *turns) == {"no_goal": -0.5, "unfounded": -0.2}
    _, messages, _ = play(made, *turns)
    assert messages[-5]["content"] == "Not verified, as before: the same details were checked already."


def test_the_day_must_be_told_after_a_look() -> None:
    order = {"status": "shipped", "arrives": "2024-06-03"}
    orders = [
        {key: value for key, value in case()["orders"][0].items() if key != "delivered"} | order,
        case()["orders"][1],
    ]
    made = case(kind="status", orders=orders, wish={"action": "status", "order": "111111", "item": "wool coat"})
    tell = words("It will arrive on June 3rd.")
    assert scored(made, *CHECKED, tell, CLOSE) == GOOD
    assert scored(made, tell, *CHECKED, CLOSE) == {"no_goal": -0.5, "verified": 0.05, "looked": 0.05}
    days = words("It arrives on June 1, June 2, June 3 or June 4.")
    assert scored(made, *CHECKED, days, CLOSE) == {"no_goal": -0.5, "verified": 0.05, "looked": 0.05}


@pytest.mark.parametrize(
    ("text", "settled"),
    [
        ("It arrives on June 3.", True),
        ("It was ordered on May 29 and arrives on June 3, 2024.", True),
        ("It arrives on June 3 or June 4.", False),
        ("2024-06-02, 2024-06-03", False),
        ("It arrives on June 4.", False),
    ],
)
def test_a_list_of_days_is_no_answer(text: str, settled: bool) -> None:
    assert settles_day(text, "2024-06-03", "2024-05-31") == settled


def test_complaints_are_escalated_at_once() -> None:
    made = case(kind="complaint", variant="staff", wish={"action": "complaint", "order": "111111", "item": "wool coat"})
    hand_over = use("escalate", reason="rude staff")
    assert scored(made, hand_over, CLOSE) == {"goal": 1.0}
    hidden = made | {"variant": "hidden accident", "reason": "it caught fire"}
    assert scored(hidden, ASK, hand_over, CLOSE) == {"goal": 1.0}
    assert scored(hidden, hand_over, CLOSE) == {"goal": 1.0, "needless_escalation": -0.3}


def test_turns_beyond_those_needed_cost_and_breaches_count_twice_at_most() -> None:
    waiting = words("What is your name?")
    assert scored(case(), *[waiting] * (NEEDED_TURNS - 3), *CHECKED, REFUND, CLOSE) == GOOD | {"turn": -0.04}
    assert scored(case(), SORRY, SORRY, SORRY, SORRY, CLOSE) == {"no_goal": -0.5, "unfounded": -0.4}


def test_what_was_cut_off_never_happened() -> None:
    """A turn without an answer was not run: neither calls nor words; nor were calls behind the end."""
    scenario, messages, _ = play(case(), *CHECKED, REFUND)
    assert not SupportDialogue.success(scenario, [*messages, CLOSE])
    both = {"role": "assistant", "content": "", "tool_calls": CLOSE["tool_calls"] + REFUND["tool_calls"]}
    _, ended, env = play(case(), *CHECKED, both)
    assert env.done
    assert SupportDialogue.replay(scenario, ended).acts == []
    malformed = [*scenario.messages, SORRY, {"role": "tool", "name": "", "content": "Error: no JSON."}]
    assert +SupportDialogue.replay(scenario, malformed).counts == {}
    assert [part.name for part in SupportDialogue.reward(scenario, malformed)] == ["not_closed", "error"]


def test_the_reward_needs_the_transcript_and_the_scenario_alone() -> None:
    for scenario in SupportDialogue.scenarios(SHOP, "val", 24, 3):
        messages = SupportDialogue(scenario, SHOP).play("scripted", 1)
        stored = Scenario.model_validate_json(scenario.model_dump_json())
        assert SupportDialogue.reward(stored, json.loads(json.dumps(messages))) == SupportDialogue.reward(
            scenario, messages
        )


# --- Players


@pytest.mark.parametrize("split", SPLITS)
def test_gold_always_succeeds_and_beats_bad(split: Split) -> None:
    for scenario in SupportDialogue.scenarios(SHOP, split, 72, 6):
        totals = {}
        for player in ("gold", "bad"):
            messages = SupportDialogue(scenario, SHOP).play(player, 2)
            totals[player] = sum(part.value for part in SupportDialogue.reward(scenario, messages))
            assert SupportDialogue.success(scenario, messages) == (player == "gold"), messages
            assert not any(map(is_error, messages)), messages
        assert totals["gold"] > totals["bad"] + 0.5


def test_scripted_needs_nothing_hidden_and_misses_what_it_does_not_ask() -> None:
    scenarios = SupportDialogue.scenarios(SHOP, "test", 150, 6)
    failed = []
    for scenario in scenarios:
        env = SupportDialogue(scenario, SHOP)
        messages = env.play("scripted", 2)
        if not SupportDialogue.success(scenario, messages):
            failed.append(scenario.data["variant"])
    assert len(failed) < 0.1 * len(scenarios)
    assert set(failed) <= {"hidden accident"}


def test_random_plays_legal_turns_and_rarely_wins() -> None:
    scenarios = SupportDialogue.scenarios(SHOP, "test", 120, 6)
    transcripts = [(one, SupportDialogue(one, SHOP).play("random", 2)) for one in scenarios]
    assert sum(SupportDialogue.success(*pair) for pair in transcripts) < 6
    assert not any(
        "there is no tool" in str(m["content"]) or "wrong arg" in str(m["content"]) for _, t in transcripts for m in t
    )


def test_the_opening_is_a_function_of_the_case() -> None:
    assert opening(case()) == opening(case())
    assert "wool coat" in opening(case())
