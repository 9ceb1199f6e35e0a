"""Scripted agents of support_dialogue: what they read out of a transcript, and what they do next."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from environments._customer import asked_for, claims, refuses
from environments._shop import CHECKS, DAMAGES, Record, judge
from environments.base import Message, is_error, tool_calls, use, words

ALARM = re.compile(r"shouted|rude|lawyer|\bsue\b|fire\b|shock|injured")
SORRY = "I am sorry, but this is not possible under our policy."
WHY = "Could you please tell me the reason?"
ASK = {
    "name": "your full name",
    "order": "your order number",
    "postcode": "your postcode",
    "reason": "the reason",
    "size": "the size that you would like",
    "address": "the new address",
}
RESULTS = {
    "refund": "I have refunded the price.",
    "exchange": "I have exchanged the item.",
    "change_address": "I have changed the address.",
    "cancel_order": "I have cancelled the order.",
    "escalate": "I have escalated your case to a supervisor.",
}
WANTS = {
    "exchange": r"exchange|another size",
    "status": r"arrive|does it come",
    "address": r"address",
    "cancel": r"cancel",
}


class View(NamedTuple):
    """What the players read out of a transcript."""

    heard: list[str]  # the customer's turns
    kind: str
    today: str
    name: str
    order: str
    codes: list[str]
    asked: set[str]  # details
    verified: bool
    failed: int
    facts: str  # what find_order has shown to a verified customer's agent
    acted: str  # the last tool that did something
    refused: bool
    reported: bool

    @property
    def told(self) -> str:
        return " ".join(self.heard)

    @classmethod
    def of(cls, messages: Sequence[Message]) -> View:
        heard = [str(message["content"]) for message in messages if message["role"] == "user"]
        told = [
            str(message["content"]) for message in messages if message["role"] == "assistant" and message["content"]
        ]
        calls = [(name, str(answer["content"])) for name, _, answer in tool_calls(messages) if not is_error(answer)]
        text = " ".join(heard)
        checks = [answer for name, answer in calls if name == "verify_identity"]
        facts = [answer for name, answer in calls if name == "find_order" and "once the customer" not in answer]
        return cls(
            heard=heard,
            kind=next((kind for kind, pattern in WANTS.items() if re.search(pattern, heard[0])), "refund"),
            today=first_match(r"Today is (\S+)\.", str(messages[0]["content"])),
            name=first_match(r"name is (\w+ \w+)", text),
            order=first_match(r"\b\d{6}\b", text),
            codes=re.findall(r"postcode is (\w+)", text),
            asked={detail for line in told for detail in asked_for(line)},
            verified=any(answer.startswith("Verified") for answer in checks),
            failed=sum(answer.startswith("Not") for answer in checks),
            facts=facts[-1] if facts else "",
            acted=next((name for name, _ in reversed(calls) if name in RESULTS), ""),
            refused=bool(told) and refuses(told[-1]),
            reported=bool(told) and (bool(claims(told[-1])) or "arrives on" in told[-1]),
        )


def converse(messages: Sequence[Message], ask_why: bool, decide: Callable[[View], Record]) -> Message:
    """The next turn of an agent who asks for what is missing, checks, looks, and does what `decide` says."""
    view = View.of(messages)
    if view.refused or view.reported:
        return use("close", summary="the customer knows the result")
    if view.acted:
        return words(RESULTS[view.acted])
    if ALARM.search(view.told):
        return use("escalate", reason=f"The customer says: {view.heard[0]}")
    wanted = {"exchange": ["size"], "address": ["address"], "refund": ["reason"] if ask_why else []}
    details = {"name": view.name, "order": view.order, "postcode": view.codes}
    missing = [detail for detail, known in details.items() if not known] + wanted.get(view.kind, [])
    missing = [detail for detail in missing if detail not in view.asked]
    if missing:
        return words(f"Could you please tell me {', '.join(ASK[detail] for detail in missing)}?")
    if not view.verified:
        if view.failed >= CHECKS:
            return words(SORRY)
        if view.failed >= len(view.codes):
            return words("I am sorry, this does not match. Could you please check your postcode and say it again?")
        return use("verify_identity", name=view.name, postcode=view.codes[-1])
    if not view.facts:
        return use("find_order", order=view.order)
    verdict = decide(view)
    if verdict["action"] == "refuse":
        return words(SORRY) if "reason" in view.asked or view.kind != "refund" else words(WHY)
    if verdict["action"] == "tell":
        return words(f"Your order arrives on {verdict['day']}.")
    return perform(verdict)


def by_policy(view: View) -> Record:
    """The policy's verdict on what find_order has shown."""
    order: Record = dict(re.findall(r"^(order|status|delivered|arrives): (\S+)$", view.facts, re.MULTILINE))
    rows = re.findall(r"^- ([a-z ]+?)(?:, size \S+)? \| (\d+) \| ([a-z ]+)$", view.facts, re.MULTILINE)
    items = [{"name": name, "price": int(price), "sale": sale} for name, price, sale in rows]
    item = next((item for item in items if item["name"] in view.told), None)
    if item is None:
        return {"action": "refuse"}
    damaged = any(damage in view.told.lower() for damage in DAMAGES)
    verdict = judge(view.kind, order, item, view.today, damaged)
    if verdict != "allowed":
        return {"action": verdict}
    details = {"day": order.get("arrives", ""), "amount": item["price"], "item": item["name"]}
    details |= {
        "size": first_match(r"size (\w+)\.", view.told),
        "address": first_match(r"address is ([^.]+)\.", view.told),
    }
    return {"action": "tell" if view.kind == "status" else view.kind, "order": order["order"]} | details


def perform(act: Record) -> Message:
    """The call that does what a verdict says."""
    name, keys = {
        "refund": ("refund", ("order", "amount")),
        "exchange": ("exchange", ("order", "item", "size")),
        "address": ("change_address", ("order", "address")),
        "cancel": ("cancel_order", ("order",)),
        "escalate": ("escalate", ()),
    }[act["action"]]
    if name == "escalate":
        return use("escalate", reason="a refund above the limit is due")
    return use(name, **{key: act[key] for key in keys})


def first_match(pattern: str, text: str) -> str:
    """The first match's group, or all of it; empty without a match."""
    found = re.search(pattern, text)
    return found[found.re.groups] if found else ""
