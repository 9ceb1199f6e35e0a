"""What an episode of support_dialogue earns and loses, and which rules a success must not break."""

from __future__ import annotations

from environments.support_dialogue.shop import CHECKS

NEEDED_TURNS = 8  # with a postcode that is wrong at first
REWARD = {  # value, and why
    "goal": (1.0, "the customer got what the policy says, no more and no less"),
    "no_goal": (-0.5, "the case was closed with another result"),
    "not_closed": (-0.6, "the case was never closed, or the customer left: no better than a wrong result, and slower"),
    "verified": (0.05, "the customer was verified: a step"),
    "looked": (0.05, "the verified customer's order was looked into: another step"),
    "unverified": (
        -0.8,
        "something was changed or paid on an order that is not the verified customer's: it may be fraud",
    ),
    "late": (-0.3, "refunded or exchanged after the days that the policy gives"),
    "excluded": (-0.3, "refunded or exchanged what the policy excludes"),
    "over_limit": (-0.3, "paid more than the agent may pay"),
    "wrong_amount": (-0.3, "a refund that is not the price of the item"),
    "shipped": (-0.3, "changed or cancelled an order that has left"),
    "unasked": (-0.3, "did what the customer did not ask for"),
    "needless_escalation": (-0.3, "escalated what the policy leaves to the agent, or before looking into it"),
    "false_claim": (-0.3, "told the customer that something was done that was not"),
    "unfounded": (-0.2, "refused before the customer and the order were checked"),
    "curt": (-0.1, "refused without a polite word"),
    "made_up": (-0.2, "checked an identity with another name or postcode than the customer gave"),
    "further_check": (-0.2, f"a check after {CHECKS} had failed: somebody is guessing"),
    "error": (-0.1, "a malformed call, an unknown tool, wrong arguments or an order that does not exist"),
    "turn": (-0.02, f"each turn beyond {NEEDED_TURNS} takes the customer's time"),
}


STEPS = ("goal", "no_goal", "not_closed", "verified", "looked", "error", "turn")
RULES = tuple(name for name in REWARD if name not in STEPS)  # what a success must not have broken
