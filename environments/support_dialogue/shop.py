"""Cases of support_dialogue: a small shop, a customer who wants something, and what the policy says about it.

A case is a function of the words in shop.json, a kind and a number. It is stored in full in the scenario's hidden data, so
that the episode and its reward need nothing else. `POLICY` states the rules to the agent; `judge` applies the same rules.
"""

from __future__ import annotations

import re
from datetime import date, timedelta
from random import Random
from typing import Any

Record = dict[str, Any]

REFUND_DAYS, DAMAGE_DAYS, LIMIT, CHECKS = 30, 90, 200, 2
LATEST_DAYS = 9  # until an order on its way arrives, at most
POLICY = f"""You are the support agent of an online shop. The customer hears what you say without a tool call.
Today is {{today}}. The shop's policy:
1. The status of an order is public. For anything else check first who the customer is: verify_identity, with the name \
and postcode that the customer gave you. The order must be the verified customer's own. After {CHECKS} failed checks with \
different details, refuse.
2. Refund: the price of the item, up to {REFUND_DAYS} days after delivery. An item that the customer says arrived damaged \
is refunded up to {DAMAGE_DAYS} days after delivery. Gift cards are never refunded, final sale items only if damaged. A \
refund of more than {LIMIT} that is due is not paid by you: escalate it.
3. Exchange for another size: up to {REFUND_DAYS} days after delivery, not for final sale.
4. Change of address and cancellation: only while the status is processing.
5. Accidents, complaints about staff, and threats of legal action: escalate at once, without checking who it is, and do \
nothing else. Ask for the reason of a refund, it may be one of these.
6. Escalate nothing else. What the policy does not allow, refuse politely, after you have checked the \
customer and looked into the order.
7. When the customer knows the result, call close."""

KINDS = ("refund", "exchange", "status", "address", "cancel", "complaint")
# Share of the cases of difficulty 2 and more that the policy plainly allows; with fewer, always refusing would do well.
ALLOWED = 0.65
# How a case can relate to the policy. The policy plainly allows the first variant of each kind.
VARIANTS = {
    "refund": tuple("fine,late,gift card,final sale,damaged late,damaged sale,large,damaged old,large late".split(",")),
    "exchange": ("fine", "late", "final sale"),
    "status": ("fine",),
    "address": ("fine", "shipped"),
    "cancel": ("fine", "shipped", "delivered"),
    "complaint": ("staff", "legal", "accident", "hidden accident"),
}
DAMAGES = ("it arrived broken", "it was damaged when it arrived", "it arrived with a crack")
REASONS = ("I do not need it any more", "I do not like it", "it is not what I expected")
ACCIDENTS = ("it caught fire", "it gave me an electric shock", "it injured my hand")


def make_case(words: Record, kind: str, number: int) -> Record:
    """The hidden data of one scenario."""
    rng = Random(f"{kind} {number}")
    difficulty = rng.randrange(1, 6)
    variants = VARIANTS[kind]
    variant = variants[0] if difficulty == 1 or rng.random() < ALLOWED else rng.choice(variants)
    if kind == "complaint":
        variant = rng.choice(variants)
        difficulty = {"hidden accident": 4}.get(variant, min(difficulty, 3))
    who = "honest"
    if kind != "complaint" and difficulty >= 4:
        who = rng.choice(("honest", "typo") if difficulty == 4 else ("typo", "typo", "impostor", "other"))
    today = date(2024, 1, 1) + timedelta(rng.randrange(360))
    customers = _customers(words, rng)
    numbers = [str(made) for made in rng.sample(range(100_000, 1_000_000), 6)]
    orders = [_order(words, number, rng.randrange(4), today, rng) for number in numbers]
    target = orders[0]
    target["customer"] = 1 if who == "other" else 0
    for order in orders:
        order["address"] = customers[order["customer"]]["address"]
    item = _arrange(words, kind, variant, target, today, rng)
    if difficulty <= 2:  # the order holds no other item
        target["items"] = [item]
    wish: Record = {"action": kind, "order": target["order"], "item": item["name"]}
    if kind == "exchange":
        wish["size"] = rng.choice([size for size in item["sizes"] if size != item["size"]])
    if kind == "address":
        wish["address"] = _address(words, rng)
    reason = rng.choice(ACCIDENTS if "accident" in variant else DAMAGES if "damaged" in variant else REASONS)
    data: Record = {"kind": kind, "difficulty": difficulty, "seed": number, "today": today.isoformat(), "who": who}
    data |= {"variant": variant, "customers": customers, "orders": orders, "wish": wish, "reason": reason}
    # The postcodes that the customer states, one each time the agent asks.
    code = customers[0]["postcode"]
    wrong = [f"{code[:2]}{made}" for made in rng.sample(range(1000, 10_000), 3) if str(made) != code[2:]]
    data["postcodes"] = {"typo": [wrong[0], code], "impostor": wrong[:2]}.get(who, [code])
    data["insists"] = max(0, difficulty - 2) if difficulty < 5 else 2
    return data | {"expected": expected(data)}


def _customers(words: Record, rng: Random) -> list[Record]:
    firsts, lasts = rng.sample(words["first_names"], 4), rng.sample(words["last_names"], 4)
    return [
        {
            "name": f"{first} {last}",
            "postcode": "".join(rng.choices("ABCDEFGHKLMNPRSTW", k=2)) + str(rng.randrange(1000, 10_000)),
            "address": _address(words, rng),
        }
        for first, last in zip(firsts, lasts, strict=True)
    ]


def _address(words: Record, rng: Random) -> str:
    return f"{rng.randrange(1, 100)} {rng.choice(words['streets'])}, {rng.choice(words['towns'])}"


def _item(product: Record, rng: Random, sale: str = "normal") -> Record:
    item = {"name": product["name"], "price": rng.randrange(product["low"], product["high"] + 1), "sale": sale}
    return item | {"sizes": product["sizes"], "size": rng.choice(product["sizes"]) if product["sizes"] else ""}


def _order(words: Record, number: str, customer: int, today: date, rng: Random) -> Record:
    products = rng.sample(words["products"], rng.randrange(2, 4))
    order: Record = {"order": number, "customer": customer, "items": [_item(product, rng) for product in products]}
    prices = [item["price"] for item in order["items"]]
    for place, item in enumerate(order["items"]):  # no two items of an order have the same price
        item["price"] += place * 200 if prices.count(item["price"]) > 1 else 0
    return order | _dates(rng.choice(("processing", "shipped", "delivered")), rng.randrange(1, 80), today)


def _dates(status: str, days: int, today: date) -> Record:
    """A status and its dates; `days` counts from the delivery, or until the arrival."""
    if status == "delivered":
        delivered = today - timedelta(days)
        ordered = delivered - timedelta(5)
        return {"status": status, "ordered": ordered.isoformat(), "delivered": delivered.isoformat()}
    ordered, arrives = today - timedelta(2), today + timedelta(1 + days % LATEST_DAYS)
    return {"status": status, "ordered": ordered.isoformat(), "arrives": arrives.isoformat()}


def _arrange(words: Record, kind: str, variant: str, order: Record, today: date, rng: Random) -> Record:
    """Change an order so that it fits a variant; returns the item that the case is about."""
    product = rng.choice([entry for entry in words["products"] if entry["sizes"] or kind != "exchange"])
    if "large" in variant:
        product = rng.choice(words["costly"])
    sale = (
        variant if variant in ("gift card", "final sale") else "final sale" if variant == "damaged sale" else "normal"
    )
    item = _item(product, rng, sale)
    if variant == "gift card":
        item = {"name": "gift card", "price": rng.choice((20, 40, 60, 100)), "sale": sale, "sizes": [], "size": ""}
    others = [entry for entry in order["items"] if entry["name"] != item["name"] and entry["price"] != item["price"]]
    order["items"] = [*others[:2], item]
    rng.shuffle(order["items"])
    days = rng.randrange(2, REFUND_DAYS + 1)
    if "late" in variant:
        days = rng.randrange(REFUND_DAYS + 1, DAMAGE_DAYS + 1)
    elif "old" in variant:
        days = rng.randrange(DAMAGE_DAYS + 1, 150)
    elif kind == "complaint" or variant == "damaged sale":
        days = rng.randrange(2, DAMAGE_DAYS + 1)
    status = "delivered"
    if kind in ("address", "cancel"):
        status = "processing" if variant == "fine" else variant
    elif kind == "status":
        status = rng.choice(("processing", "shipped"))
    for key in ("delivered", "arrives"):
        order.pop(key, None)
    order |= _dates(status, days, today)
    return item


def expected(data: Record) -> Record:
    """The action that the policy demands of the agent."""
    kind, wish = data["kind"], data["wish"]
    if kind == "complaint":
        return {"action": "escalate"}
    if data["who"] in ("impostor", "other"):
        return {"action": "refuse"}
    order = next(order for order in data["orders"] if order["order"] == wish["order"])
    item = next(item for item in order["items"] if item["name"] == wish["item"])
    verdict = judge(kind, order, item, data["today"], data["reason"] in DAMAGES)
    if verdict != "allowed":
        return {"action": verdict}
    if kind == "status":
        return {"action": "tell", "day": order["arrives"]}
    more: Record = {
        "refund": {"amount": item["price"]},
        "exchange": {"item": item["name"], "size": wish.get("size")},
    }.get(kind, {"address": wish["address"]} if kind == "address" else {})
    return {"action": kind, "order": order["order"]} | more


def judge(kind: str, order: Record, item: Record, today: str, damaged: bool) -> str:
    """`allowed`, `refuse` or `escalate`, provided that the order is the customer's own."""
    if kind in ("address", "cancel"):
        return "allowed" if order["status"] == "processing" else "refuse"
    if kind == "status":
        return "allowed" if "arrives" in order else "refuse"
    if broken_rule(kind, order, item, today, damaged):
        return "refuse"
    return "escalate" if kind == "refund" and item["price"] > LIMIT else "allowed"


def broken_rule(kind: str, order: Record, item: Record, today: str, damaged: bool) -> str | None:
    """`late` or `excluded` if a refund or an exchange breaks that rule, else None."""
    if "delivered" not in order:
        return "late"
    days = (date.fromisoformat(today) - date.fromisoformat(order["delivered"])).days
    damaged = damaged and kind == "refund"
    if item["sale"] == "gift card" or (item["sale"] == "final sale" and not damaged):
        return "excluded"
    return "late" if days > (DAMAGE_DAYS if damaged else REFUND_DAYS) else None


def bare(text: str) -> str:
    """Letters and digits alone, in lower case, so that spelling does not matter in a comparison."""
    return re.sub(r"\W+", "", text).lower()
