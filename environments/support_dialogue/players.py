"""The four players of support_dialogue: what they read out of a transcript, and what they do next."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

from environments.base import Env, Message, is_error, tool_calls, use, words
from environments.support_dialogue.customer import asked_for, claims, refuses
from environments.support_dialogue.shop import CHECKS, DAMAGES, Record, judge

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


class Conversation(NamedTuple):
    """What the players read out of a transcript."""

    heard: list[str]  # the customer's turns
    kind: str
    today: str
    name: str
    order: str
    codes: list[str]
    asked: set[str]  # details that the agent has asked for
    verified: bool
    failed: int
    facts: str  # the last result of find_order after the customer was verified
    acted: str  # the last tool that changed something
    refused: bool
    reported: bool

    @property
    def heard_text(self) -> str:
        return " ".join(self.heard)

    @classmethod
    def of(cls, messages: Sequence[Message]) -> Conversation:
        heard = [str(message["content"]) for message in messages if message["role"] == "user"]
        spoken = [
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
            asked={detail for line in spoken for detail in asked_for(line)},
            verified=any(answer.startswith("Verified") for answer in checks),
            failed=sum(answer.startswith("Not") for answer in checks),
            facts=facts[-1] if facts else "",
            acted=next((name for name, _ in reversed(calls) if name in RESULTS), ""),
            refused=bool(spoken) and refuses(spoken[-1]),
            reported=bool(spoken) and (bool(claims(spoken[-1])) or "arrives on" in spoken[-1]),
        )


def converse(messages: Sequence[Message], ask_why: bool, decide: Callable[[Conversation], Record]) -> Message:
    """The next turn of an agent who asks for missing details, verifies, looks the order up, and does what `decide` says."""
    view = Conversation.of(messages)
    if view.refused or view.reported:
        return use("close", summary="the customer knows the result")
    if view.acted:
        return words(RESULTS[view.acted])
    if ALARM.search(view.heard_text):
        return use("escalate", reason=f"The customer says: {view.heard[0]}")
    extra = {"exchange": ["size"], "address": ["address"], "refund": ["reason"] if ask_why else []}
    details = {"name": view.name, "order": view.order, "postcode": view.codes}
    missing = [detail for detail, value in details.items() if not value] + extra.get(view.kind, [])
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


def by_policy(view: Conversation) -> Record:
    """The policy's verdict on the order that find_order has shown."""
    order: Record = dict(re.findall(r"^(order|status|delivered|arrives): (\S+)$", view.facts, re.MULTILINE))
    rows = re.findall(r"^- ([a-z ]+?)(?:, size \S+)? \| (\d+) \| ([a-z ]+)$", view.facts, re.MULTILINE)
    items = [{"name": name, "price": int(price), "sale": sale} for name, price, sale in rows]
    item = next((item for item in items if item["name"] in view.heard_text), None)
    if item is None:
        return {"action": "refuse"}
    damaged = any(damage in view.heard_text.lower() for damage in DAMAGES)
    verdict = judge(view.kind, order, item, view.today, damaged)
    if verdict != "allowed":
        return {"action": verdict}
    details = {"day": order.get("arrives", ""), "amount": item["price"], "item": item["name"]}
    details |= {
        "size": first_match(r"size (\w+)\.", view.heard_text),
        "address": first_match(r"address is ([^.]+)\.", view.heard_text),
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
    match = re.search(pattern, text)
    return match[match.re.groups] if match else ""


class Players(Env):
    """The turns of the players; `SupportDialogue` is the rest of the environment."""

    case: Record  # the scenario's hidden data
    orders: dict[str, Record]  # by number

    def scripted(self, messages: Sequence[Message], rng: Random) -> Message:
        """Asks for the details, verifies, looks up and follows the policy; asks for a reason only before refusing."""
        return converse(messages, ask_why=False, decide=by_policy)

    def gold(self, messages: Sequence[Message], rng: Random) -> Message:
        return converse(messages, ask_why=True, decide=lambda view: self.case["expected"])

    def bad(self, messages: Sequence[Message], rng: Random) -> Message:
        """Believes everybody and acts at once, or refuses at once; never escalates."""
        turn = sum(message["role"] == "assistant" for message in messages)
        wish, kind = self.case["wish"], self.case["kind"]
        if turn:
            return use("close", summary="done")
        if kind in ("status", "complaint") or rng.random() < 0.3:
            return words("No, that is not possible.")
        item = next(item for item in self.orders[wish["order"]]["items"] if item["name"] == wish["item"])
        return perform({**wish, "action": kind, "amount": item["price"]})

    def random(self, messages: Sequence[Message], rng: Random) -> Message:
        text = " ".join(str(message["content"]) for message in messages if message["role"] != "system")
        order = rng.choice(re.findall(r"\b\d{6}\b", text) or ["123456"])
        name, postcode = first_match(r"name is (\w+ \w+)", text), first_match(r"[A-Z]{2}\d{4}", text)
        return rng.choice(
            (
                words("Could you please tell me your name, order number and postcode?"),
                words("One moment, please."),
                words("I am sorry, this is not possible."),
                use("find_order", order=order),
                use("verify_identity", name=name, postcode=postcode),
                use("refund", order=order, amount=rng.randrange(1, 300)),
                use("exchange", order=order, item="wool coat", size="M"),
                use("change_address", order=order, address="1 Mill Lane, Norbury"),
                use("cancel_order", order=order),
                use("escalate", reason="the customer is unhappy"),
                use("close", summary="done"),
            )
        )
