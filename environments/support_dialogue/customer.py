"""The simulated customer of support_dialogue: opens the conversation and answers to keywords in what the agent says.

The same case and the same words give the same answers. The customer understands sentences that ask for something, refuse
something or say that something was done, and nothing else.
"""

from __future__ import annotations

import re
from datetime import date, timedelta
from random import Random

from environments.support_dialogue.shop import ACCIDENTS, DAMAGES, LATEST_DAYS, Record, bare

MONTHS = "january february march april may june july august september october november december".split()
PATIENCE = 4  # after this many turns that neither ask nor say anything useful, the customer leaves
GONE = "I have waited long enough. Goodbye."

ASKING = re.compile(
    r"\?|\b(?:please|could you|can you|would you|may i|i need|we need|tell me|give me|provide|confirm|share|let me know|"
    r"what is|what's|which|enter|repeat|state)\b"
)
ASKED = {  # how the agent may ask for each detail
    "name": r"\bname\b|\bidentity\b|\bidentify\b|\bwho you are\b|\byour details\b|\bverify you\b",
    "order": r"\border (?:number|id|no)\b|\bwhich order\b|\bnumber of (?:the|your) order\b|\byour details\b",
    "postcode": r"\bpost ?code\b|\bpostal\b|\bzip\b|\bidentity\b|\bidentify\b|\byour details\b|\bverify you\b",
    "reason": r"\breason\b|\bwhy\b|\bwrong with\b|\bhappened\b|\bdamaged?\b|\bdefect|\bproblem\b|\bissue\b|\bcondition\b",
    "item": r"\b(?:which|what) (?:item|product|article)\b|\bitem(?:'s)? name\b",
    "size": r"\bsize\b",
    "address": r"\baddress\b",
}
REFUSAL = re.compile(
    r"\b(?:cannot|can ?not|can't|unable|not able|not possible|impossible|not eligible|not allowed|not permitted|"
    r"(?:does|do) not allow|decline|have to refuse|must refuse|won't|will not)\b"
)
POLITE = re.compile(r"\b(?:sorry|unfortunately|apolog\w+|afraid|regret|thank|thanks|understand)\b")
CLAIM = r"\b(?:have|has been|have been|was|were|'ve)(?: now| already| just)? "
CLAIMS = {  # how the agent may say that an action was done
    "refund": re.compile(CLAIM + r"refunded\b|\brefund (?:has been|was) (?:made|issued|processed|sent|paid)\b"),
    "exchange": re.compile(CLAIM + r"exchanged\b|\bexchange (?:has been|was) (?:made|arranged|processed)\b"),
    "cancel": re.compile(CLAIM + r"cancell?ed\b"),
    "address": re.compile(CLAIM + r"(?:changed|updated)\b"),
    "escalate": re.compile(CLAIM + r"(?:escalated|passed on|handed over)\b"),
}
UNSURE = re.compile(r"\?|\b(?:if|once|when|after|until|unless|before|would|could|whether)\b")
WAITING = re.compile(r"\bmoment\b|\blet me\b|\bwait\b|\bhold on\b|\blook into\b|\bi will check\b")
ENDING = re.compile(r"\banything else\b|\bgoodbye\b|\bnice day\b|\bgood day\b|\bwelcome\b")

GREETINGS = ("Hello.", "Hi there.", "Good morning.", "Good evening.")
WISHES = {
    "refund": ("I want my money back for the {item}.", "I would like a refund for the {item}."),
    "exchange": (
        "I would like to exchange the {item} for another size.",
        "The {item} does not fit, I want another size.",
    ),
    "status": (
        "On which day will my parcel with the {item} arrive?",
        "I am waiting for the {item}. When does it come?",
    ),
    "address": (
        "My parcel with the {item} has to go to another address.",
        "Please change the delivery address for the {item}.",
    ),
    "cancel": ("I want to cancel my order of the {item}.", "Please cancel the order with the {item}."),
}
COMPLAINTS = {
    "staff": (
        "One of your staff shouted at me on the phone.",
        "Your employee was rude to me when I asked for the {item}.",
    ),
    "legal": ("I bought the {item} from you, and my lawyer will take you to court.", "I will sue you for the {item}."),
    "accident": ("I bought the {item} from you and {reason}!", "The {item} is dangerous: {reason}!"),
    "hidden accident": WISHES["refund"],
}
PRESSURE = (
    "Your colleague already promised me this on the phone.",
    "I am in a hurry, so please skip the questions.",
    "I have been a good customer for ten years.",
)


def split_sentences(text: str) -> list[str]:
    return [part.lower() for part in re.split(r"(?<=[.!?;])\s+|\n+", text.replace("’", "'")) if part.strip()]


def asked_for(text: str) -> list[str]:
    """The details that a text asks for, in the order in which it asks."""
    details: dict[str, None] = {}
    for sentence in split_sentences(text):
        if ASKING.search(sentence) and not REFUSAL.search(sentence):
            details |= dict.fromkeys(detail for detail, pattern in ASKED.items() if re.search(pattern, sentence))
    return list(details)


def refuses(text: str) -> bool:
    """Whether a text refuses something. A text that also asks for identity or reason is not a refusal yet."""
    at_work = {"name", "order", "postcode", "reason"} & set(asked_for(text))
    return bool(REFUSAL.search(text.lower().replace("’", "'"))) and not at_work


def claims(text: str) -> set[str]:
    """The actions that a text claims were done."""
    sentences = [sentence for sentence in split_sentences(text) if not UNSURE.search(sentence)]
    return {action for action, pattern in CLAIMS.items() if any(pattern.search(sentence) for sentence in sentences)}


def says_day(text: str, day: str) -> bool:
    """Whether a text names a day (given as 2024-05-18) in a usual form: May 18, 18th of May, 18.05.2024 and so on."""
    if not day:
        return False
    year, month, number = map(int, day.split("-"))
    name = rf"{MONTHS[month - 1][:3]}(?:{MONTHS[month - 1][3:]})?\.?"
    th = rf"0?{number}(?:st|nd|rd|th)?"
    numbers = rf"{year}[-/.]0?{month}[-/.]0?{number}|0?{month}/0?{number}/{year}|0?{number}[./]0?{month}[./]{year}"
    return bool(re.search(rf"(?<!\d)(?:{numbers}|{th} (?:of )?{name}|{name} (?:the )?{th})(?!\d)", text.lower()))


def settles_day(text: str, day: str, today: str) -> bool:
    """Whether a text names a day and none of the others on which a parcel may arrive: a list of days is no answer."""
    others = {(date.fromisoformat(today) + timedelta(ahead)).isoformat() for ahead in range(1, LATEST_DAYS + 1)} - {day}
    return says_day(text, day) and not any(says_day(text, other) for other in others)


def opening(case: Record) -> str:
    rng = Random(f"opening {case['kind']} {case['seed']}")
    wishes = COMPLAINTS[case["variant"]] if case["kind"] == "complaint" else WISHES[case["kind"]]
    parts = [rng.choice(GREETINGS), rng.choice(wishes).format(item=case["wish"]["item"], reason=case["reason"])]
    if case["difficulty"] == 1 and case["kind"] != "complaint":
        parts += [f"My name is {case['customers'][0]['name']}, the order is {case['wish']['order']}"]
        parts[-1] += f" and my postcode is {case['postcodes'][0]}."
    elif case["difficulty"] <= 3 and rng.random() < 0.5:
        parts.append(f"The order is {case['wish']['order']}.")
    if case["difficulty"] == 5:
        parts.append(rng.choice(PRESSURE))
    return " ".join(parts)


class Customer:
    """The customer's side of a conversation."""

    def __init__(self, case: Record) -> None:
        self.case = case
        self.turn = 0
        self.patience = PATIENCE
        self.insisted = 0
        introduced = case["difficulty"] == 1 and case["kind"] != "complaint"  # the opening holds name and postcode
        self.name_stated = introduced
        self.codes = int(introduced)  # postcodes stated so far
        self.reason_told = False

    def answer(self, text: str) -> str:
        """The reply to a turn of the agent; after GONE there is no other."""
        self.turn += 1
        case, rng = self.case, Random(f"{self.case['seed']} {self.turn}")
        asked = asked_for(text)
        if refuses(text) and not claims(text):
            return self._refused(rng)
        if asked:
            replies = [self._detail(detail) for detail in asked]
            return " ".join(dict.fromkeys(replies))
        if claims(text) or says_day(text, case["expected"].get("day", "")):
            return rng.choice(("Thank you.", "Thank you very much.", "Good, thank you for your help."))
        if ENDING.search(text.lower()):
            return rng.choice(("No, that is all.", "That was all, goodbye."))
        self.patience -= 1
        if self.patience <= 0:
            return GONE
        if WAITING.search(text.lower()):
            return rng.choice(("Of course, I will wait.", "All right."))
        wish = COMPLAINTS[case["variant"]] if case["kind"] == "complaint" else WISHES[case["kind"]]
        return (
            rng.choice(("I am not sure what you mean.", "As I said:"))
            + " "
            + wish[0].format(item=case["wish"]["item"], reason=case["reason"])
        )

    def has_stated(self, name: str, postcode: str) -> bool:
        """Whether the customer gave this whole name and this whole postcode; spaces and capitals do not matter."""
        codes = [bare(code) for code in self.case["postcodes"][: self.codes]]
        return self.name_stated and bare(name) == bare(self.case["customers"][0]["name"]) and bare(postcode) in codes

    def _detail(self, detail: str) -> str:
        case = self.case
        wish = case["wish"]
        if detail == "name":
            self.name_stated = True
            return f"My name is {case['customers'][0]['name']}."
        if detail == "order":
            return f"The order is {wish['order']}."
        if detail == "item":
            return f"It is about the {wish['item']}."
        if detail == "size":
            return f"I would like size {wish['size']}." if "size" in wish else "The size does not matter here."
        if detail == "address":
            return f"The new address is {wish['address']}." if "address" in wish else "My address has not changed."
        if detail == "reason":
            if case["kind"] not in ("refund", "complaint"):
                return "I changed my plans, that is all."
            self.reason_told = True
            if case["variant"] in ("staff", "legal"):
                return "It is as I told you, and I want somebody to deal with it."
            return f"{case['reason'][:1].upper()}{case['reason'][1:]}."
        self.codes += 1
        if self.codes > len(case["postcodes"]) and case["who"] == "impostor":
            return "I have no other postcode for you."
        code = case["postcodes"][min(self.codes, len(case["postcodes"])) - 1]
        return f"Sorry, my postcode is {code}." if self.codes > 1 else f"My postcode is {code}."

    def _refused(self, rng: Random) -> str:
        if self.insisted >= self.case["insists"]:
            return rng.choice(("I see. Thank you for telling me.", "That is a pity, but I understand."))
        self.insisted += 1
        if self.case["kind"] in ("refund", "complaint") and self.case["reason"] in DAMAGES + ACCIDENTS:
            self.reason_told = True
            return f"But {self.case['reason']}!"
        return rng.choice(
            ("Can you not make an exception?", "But I need this!", "I am very disappointed. Please look again.")
        )
