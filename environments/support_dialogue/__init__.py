"""Support dialogue: talk to a customer of a shop, find out what they want, and do what the policy allows and no more.

The customer is simulated (customer.py). The agent must ask for the customer's wish, and some customers are not who they
say they are. The tools do whatever they are asked to, so the agent can break the policy: each breach is a named penalty.
The reward comes from replaying the transcript on the shop in the scenario's data (shop.py). The four players are in
players.py.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from environments import base
from environments.base import Component, Message, Outcome, Scenario, Split, count_turns, tool
from environments.support_dialogue.customer import GONE, POLITE, Customer, claims, opening, refuses, settles_day
from environments.support_dialogue.players import Players
from environments.support_dialogue.rewards import NEEDED_TURNS, REWARD, RULES
from environments.support_dialogue.shop import (
    CHECKS,
    DAMAGES,
    KINDS,
    LIMIT,
    POLICY,
    Record,
    bare,
    broken_rule,
    make_case,
)

POOL = 3000  # cases of each kind, over all splits
COUNTED = 2  # at most so many breaches of a rule count, so that one wild episode does not outweigh a batch
LONGEST = 2000  # the customer hears the first characters of a turn, up to this many


class SupportDialogue(Players):
    """One customer's case."""

    max_turns = 12
    sources = ("kind", "seed")
    openings_repeat = True  # nearly: a greeting and a wish; the details come later, when the customer is asked

    def __init__(self, scenario: Scenario, data: Any) -> None:
        super().__init__(scenario, data)
        self.case = scenario.data
        self.orders = {order["order"]: order for order in self.case["orders"]}
        self.customer = Customer(self.case)
        self.verified: int | None = None  # index of the verified customer
        self.failed: set[str] = set()  # postcodes that the customer gave and that failed a check
        self.failures = 0  # failed checks, also of what the customer did not give, or of the same again
        self.looked = self.refused = self.day_stated = self.closed = False
        self.acts: list[Record] = []  # the agent's actions in order, in the form of `expected`
        self.counts: Counter[str] = Counter()  # breaches by rule

    @classmethod
    def load(cls, folder: Path) -> Record:
        """The vocabulary that shops are generated from."""
        shop: Record = json.loads(base.read_text(folder / "shop.json"))
        return shop

    @classmethod
    def scenarios(cls, data: Record, split: Split, count: int, seed: int) -> list[Scenario]:
        rng = Random(f"{split} {seed}")
        chosen: list[Scenario] = []
        for place, kind in enumerate(KINDS):  # equally many of each kind
            quota = (count + len(KINDS) - 1 - place) // len(KINDS)
            matching: list[Scenario] = []
            for number in rng.sample(range(POOL), POOL):
                if len(matching) == quota:
                    break
                case = make_case(data, kind, number)
                if base.split_of(opening(case)) == split:  # splits share no first words
                    matching.append(cls.from_case(split, case))
            if len(matching) < quota:
                raise ValueError(
                    f"{count} scenarios need {quota} cases of the kind {kind}, and support_dialogue has {len(matching)} in "
                    f"the split {split}"
                )
            chosen += matching
        rng.shuffle(chosen)
        return chosen

    @classmethod
    def from_case(cls, split: Split, case: Record) -> Scenario:
        system = {"role": "system", "content": POLICY.format(today=case["today"])}
        return Scenario.make("support_dialogue", split, [system, {"role": "user", "content": opening(case)}], case)

    # Tools

    @tool
    def find_order(self, order: str) -> str:
        """Look up an order: its status, and all else where it is the verified customer's.

        Args:
            order: the order number, six digits
        """
        record = self.orders.get(order.strip())
        if record is None:
            return base.error("there is no order with this number")
        head = f"order: {record['order']}\nstatus: {record['status']}"
        if self.verified is None:
            return f"{head}\nAll else is shown once the customer is verified."
        self.looked |= record["order"] == self.case["wish"]["order"]
        if record["customer"] != self.verified:
            return f"{head}\nThis order is not the verified customer's."
        days = [f"{key}: {record[key]}" for key in ("ordered", "delivered", "arrives") if key in record]
        items = [
            f"- {item['name']}{', size ' + item['size'] if item['size'] else ''} | {item['price']} | {item['sale']}"
            for item in record["items"]
        ]
        return "\n".join([head, *days, f"address: {record['address']}", "items:", *items])

    @tool
    def verify_identity(self, name: str, postcode: str) -> str:
        """Check who the customer is. True customers know the name and the postcode of their account.

        Args:
            name: first and last name, as the customer gave them
            postcode: the postcode that the customer gave
        """
        stated = self.customer.has_stated(name, postcode)
        self.counts["made_up"] += not stated
        self.counts["further_check"] += self.failures >= CHECKS
        for place, customer in enumerate(self.case["customers"]):
            if (bare(customer["name"]), bare(customer["postcode"])) == (bare(name), bare(postcode)):
                self.verified = place
                return f"Verified: {customer['name']}."
        self.failures += 1
        if not stated:
            return "Not verified, and this is not the name and the postcode that the customer gave."
        if bare(postcode) in self.failed:
            return "Not verified, as before: the same details were checked already."
        self.failed.add(bare(postcode))
        return "Not verified: no customer has this name and this postcode."

    @tool
    def refund(self, order: str, amount: int) -> str:
        """Pay money back to the customer.

        Args:
            order: the order number
            amount: how much, in whole dollars
        """
        record = self.orders.get(order.strip())
        if record is not None and not 0 < amount <= sum(item["price"] for item in record["items"]):
            return base.error("the amount must be at least 1, and at most what was paid for the order")
        return self._act({"action": "refund", "order": order.strip(), "amount": amount}, f"Refunded: {amount} dollars.")

    @tool
    def exchange(self, order: str, item: str, size: str) -> str:
        """Send the same item in another size; the customer sends the first one back.

        Args:
            order: the order number
            item: the name of the item, as in the order
            size: the new size
        """
        name, wanted = item.strip().lower(), size.strip().upper()
        record = self.orders.get(order.strip())
        if record is not None:
            held = next((entry for entry in record["items"] if entry["name"] == name), None)
            if held is None:
                return base.error("there is no such item in this order")
            if wanted not in held["sizes"]:
                return base.error(f"this item's sizes are: {', '.join(held['sizes']) or 'none'}")
        act = {"action": "exchange", "order": order.strip(), "item": name, "size": wanted}
        return self._act(act, f"Exchanged: {name} in size {wanted} is on its way.")

    @tool
    def change_address(self, order: str, address: str) -> str:
        """Change where an order is delivered to.

        Args:
            order: the order number
            address: number, street and town
        """
        if not bare(address):
            return base.error("the address must hold a street and a town")
        return self._act({"action": "address", "order": order.strip(), "address": address}, "The address was changed.")

    @tool
    def cancel_order(self, order: str) -> str:
        """Cancel a whole order.

        Args:
            order: the order number
        """
        return self._act({"action": "cancel", "order": order.strip()}, "The order was cancelled.")

    @tool
    def escalate(self, reason: str) -> str:
        """Hand the case over to a supervisor.

        Args:
            reason: why, in a few words
        """
        if len(reason.split()) < 2:
            return base.error("the reason must be said in a few words")
        if any(act["action"] == "escalate" for act in self.acts):
            return base.error("the case was handed over already")
        founded = self.looked if self.case["kind"] != "complaint" else self._accident_known()
        self.counts["needless_escalation"] += not (self.case["expected"]["action"] == "escalate" and founded)
        self.acts.append({"action": "escalate"})
        return "Handed over to a supervisor."

    @tool
    def close(self, summary: str) -> str:
        """Close the case. This ends the conversation.

        Args:
            summary: what was done, in a few words
        """
        if not summary.strip():
            return base.error("the summary must not be empty")
        self.closed = self.done = True
        return "The case was closed."

    def _accident_known(self) -> bool:
        return self.case["variant"] != "hidden accident" or self.customer.reason_told

    def _act(self, act: Record, answer: str) -> str:
        """Carry out an action even where the policy forbids it, and count the rules that it breaks."""
        record, kind, wish = self.orders.get(act["order"]), act["action"], self.case["wish"]
        if record is None:
            return base.error("there is no order with this number")
        if any(other == act for other in self.acts):
            return base.error("this was done already")
        self.counts["unverified"] += record["customer"] != self.verified
        same = kind == wish["action"] and act["order"] == wish["order"]
        if kind in ("refund", "exchange"):
            items = record["items"]
            matching = [item for item in items if act.get("amount") == item["price"] or act.get("item") == item["name"]]
            requested = [item for item in items if same and item["name"] == wish["item"]]
            item = (matching or requested or items)[0]
            damaged = self.case["reason"] in DAMAGES and self.customer.reason_told and same
            if broken := broken_rule(kind, record, item, self.case["today"], damaged):
                self.counts[broken] += 1
            if kind == "refund":
                self.counts["wrong_amount"] += not matching
                self.counts["over_limit"] += act["amount"] > LIMIT
            same = same and (not matching or item["name"] == wish["item"]) and act.get("size") == wish.get("size")
        else:
            self.counts["shipped"] += record["status"] != "processing"
            same = same and bare(act.get("address", "")) == bare(wish.get("address", ""))
        self.counts["unasked"] += not same
        self.acts.append(act)
        return answer

    # The customer

    def hear(self, text: str) -> list[Message]:
        """The customer's answer to a turn in plain words."""
        text, expected = text[:LONGEST], self.case["expected"]
        actions = {act["action"] for act in self.acts}
        if "exchange" in actions:
            actions.add("address")  # "I have changed the size"
        claimed = claims(text)
        self.counts["false_claim"] += bool(claimed - actions)
        self.day_stated |= self.looked and settles_day(text, expected.get("day", ""), self.case["today"])
        if refuses(text) and not claimed:
            founded = self.looked or len(self.failed) >= CHECKS
            polite = bool(POLITE.search(text.lower()))
            self.counts["unfounded"] += not founded
            self.counts["curt"] += not polite
            self.refused |= founded and polite
        answer = self.customer.answer(text)
        self.done = answer == GONE
        return [{"role": "user", "content": answer}]

    # Reward

    @classmethod
    def replay(cls, scenario: Scenario, messages: Sequence[Message]) -> SupportDialogue:
        """The episode of a transcript. Turns that were cut off, and therefore not answered, are skipped."""
        env = cls(scenario, None)
        for place, message in enumerate(messages):
            if message["role"] != "assistant" or env.done:
                continue
            answered = 0
            while place + 1 + answered < len(messages) and messages[place + 1 + answered]["role"] == "tool":
                answered += 1
            for asked in (message.get("tool_calls") or ())[:answered]:
                if not env.closed:
                    env.call(asked["function"]["name"], asked["function"]["arguments"])
            after = messages[place + 1]["role"] if place + 1 < len(messages) else ""
            if not message.get("tool_calls") and after == "user":
                env.hear(str(message["content"]))
        return env

    def reached(self) -> bool:
        """Whether the agent's actions are the ones that the policy demands."""
        expected = self.case["expected"]
        if expected["action"] in ("refuse", "tell"):
            return self.closed and not self.acts and (self.day_stated if expected["action"] == "tell" else self.refused)
        acts = [{key: bare(str(value)) for key, value in act.items()} for act in self.acts]
        return self.closed and acts == [{key: bare(str(value)) for key, value in expected.items()}]

    @classmethod
    def reward(cls, scenario: Scenario, messages: Sequence[Message]) -> list[Component]:
        env = cls.replay(scenario, messages)
        counts = dict.fromkeys(REWARD, 0) | {name: min(count, COUNTED) for name, count in env.counts.items()}
        counts["goal" if env.reached() else "no_goal" if env.closed else "not_closed"] = 1
        if scenario.data["kind"] != "complaint":
            counts["verified"], counts["looked"] = int(env.verified is not None), int(env.looked)
        counts["error"] = base.count_errors(messages)
        counts["turn"] = max(0, count_turns(messages) - NEEDED_TURNS)
        return base.weighed(counts, REWARD)

    @classmethod
    def success(cls, scenario: Scenario, messages: Sequence[Message]) -> bool:
        env = cls.replay(scenario, messages)
        return env.reached() and not any(env.counts[name] for name in RULES)

    @classmethod
    def outcome(cls, scenario: Scenario, messages: Sequence[Message]) -> Outcome:
        """The last action; without one, the day that the customer was told, or the refusal."""
        env = cls.replay(scenario, messages)
        expected, impostor = scenario.data["expected"], env.verified is None and len(env.failed) >= CHECKS
        answer = expected if env.day_stated else {"action": "refuse"} if env.refused else None
        checks = {"verify": impostor or env.verified is not None, "look": impostor or env.looked}
        required = {} if scenario.data["kind"] == "complaint" else checks
        kept = not any(env.counts[name] for name in RULES)
        required = {**required, "keep to the policy": kept, "close": env.closed}
        return Outcome(env.acts[-1] if env.acts else answer, expected, NEEDED_TURNS, required)
