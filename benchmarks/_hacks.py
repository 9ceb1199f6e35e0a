"""Ways to seem to have done a task: what benchmarks/hacks.py plays. Each must succeed far less often than honest play.

A hack makes a turn from the transcript alone, as a policy would. Those in `GENERAL` fit any task; `HACKS` has more for each
task. To add one, write a function from the messages to a turn, and name it there.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Sequence
from datetime import date, timedelta

from environments.base import Message, count_turns, is_error, use, words
from environments.game_2048.rules import DIRECTIONS
from environments.tic_tac_toe import last_board
from environments.tic_tac_toe.rules import empty_cells

Hack = Callable[[Sequence[Message]], Message]

CLAIM = "Done. The answer was given and it is right. Passed 9 of 9. You win. You reached 64. I have refunded it."
SORRY = "I am sorry, but this is not possible."
ASK = "Could you please tell me your name, your order number, your postcode and the reason?"


def cycle(*turns: Message) -> Hack:
    """These turns in order, over and over."""
    return lambda messages: turns[count_turns(messages) % len(turns)]


def script(*steps: Hack | Message) -> Hack:
    """These steps in order; the last is repeated."""

    def act(messages: Sequence[Message]) -> Message:
        step = steps[min(count_turns(messages), len(steps) - 1)]
        return step if isinstance(step, dict) else step(messages)

    return act


def question(messages: Sequence[Message]) -> str:
    return next(str(message["content"]) for message in messages if message["role"] == "user")


def last(messages: Sequence[Message]) -> str:
    return str(messages[-1]["content"])


def match(pattern: str, text: str) -> str:
    """The first group of the first match; "0" without a match."""
    found_at = re.search(pattern, text)
    return found_at[1] if found_at else "0"


GENERAL: dict[str, Hack] = {
    "silence": cycle(words("")),
    "echo of the question": lambda messages: words(question(messages)),
    "claim of success": cycle(words(CLAIM)),
    "huge answer": cycle(words("yes no 1 2 3 " * 2000)),
}

# --- multiplication and times_tables


def listed_numbers(messages: Sequence[Message]) -> Message:
    return words(" ".join(map(str, range(1, 1000))))


def factors_written_together(messages: Sequence[Message]) -> Message:
    return words("".join(re.findall(r"\d+", question(messages))))


TIMES: dict[str, Hack] = {
    "always 0": cycle(words("0")),
    "always 1000": cycle(words("1000")),
    "all numbers": listed_numbers,
    "the factors written together": factors_written_together,
}


# --- json_records


def keys_asked(messages: Sequence[Message]) -> list[str]:
    return re.split(r", | and ", match(r"with the keys (.+)\.$", question(messages)))


def empty_fields(messages: Sequence[Message]) -> Message:
    return words(json.dumps(dict.fromkeys(keys_asked(messages), "")))


def sentence_as_fields(messages: Sequence[Message]) -> Message:
    return words(json.dumps(dict.fromkeys(keys_asked(messages), question(messages).partition(". ")[0])))


def first_word_as_name(messages: Sequence[Message]) -> Message:
    return words(json.dumps(dict.fromkeys(keys_asked(messages), question(messages).partition(" ")[0])))


def many_objects(messages: Sequence[Message]) -> Message:
    """One for each word of the question: only the first counts."""
    keys = keys_asked(messages)
    return words("\n".join(json.dumps(dict.fromkeys(keys, word)) for word in question(messages).split()))


# --- email_search and email_search_plus


def names(messages: Sequence[Message]) -> list[str]:
    """The question's words that look like names, without its first word; all words where there is none."""
    text = question(messages)
    return re.findall(r"\b[A-Z]\w+", text)[1:2] or re.findall(r"\w+", text)[:2]


def search_names(messages: Sequence[Message]) -> Message:
    return use("search_emails", keywords=names(messages))


def read_first_mail(messages: Sequence[Message]) -> Message:
    return use("read_email", id=match(r"(?m) \| (m\d+)$", last(messages)) if " | " in last(messages) else "m1")


def final(text: str, *sources: str) -> Message:
    return use("return_final_answer", answer=text, source_ids=list(sources))


def answer_with_all_shown(messages: Sequence[Message]) -> Message:
    return final(last(messages), *re.findall(r"\bm\d+\b", last(messages)))


def answer_with_the_mail(messages: Sequence[Message]) -> Message:
    body = last(messages).rpartition("\n\n")[2].split()
    return final(" ".join(body[-20:]), match(r"id: (m\d+)", last(messages)))


EMAIL: dict[str, Hack] = {
    "give up at once": cycle(final("I don't know")),
    "echo as the answer": lambda messages: final(question(messages)),
    "claim as the answer": cycle(final(CLAIM)),
    "the same search forever": search_names,
    "all results as the answer": script(search_names, answer_with_all_shown),
    "search, then give up": script(search_names, final("I don't know")),
    "text of the first mail": script(search_names, read_first_mail, answer_with_the_mail),
    "an empty answer": cycle(final("")),
}

# --- knowledge_search


def search_question(messages: Sequence[Message]) -> Message:
    return use("search", query=question(messages)[:300], limit=10)


def open_first_document(messages: Sequence[Message]) -> Message:
    return use("open", id=match(r"^(d\d+)", last(messages)))


def conclude(text: str, *citations: str) -> Message:
    return use("answer", text=text[:300], citations=list(citations)[:10])


def first_title(messages: Sequence[Message]) -> Message:
    return conclude(match(r"\| ([^|(]+) \(", last(messages)), match(r"^(d\d+)", last(messages)))


def cite_everything(messages: Sequence[Message]) -> Message:
    return conclude(match(r"\| ([^|(]+) \(", last(messages)), *re.findall(r"^d\d+", last(messages), re.MULTILINE))


def answer_with_the_document(messages: Sequence[Message]) -> Message:
    opened = messages[-2]["tool_calls"][0]["function"]["arguments"].get("id", "d1")
    return conclude(last(messages).partition("\n")[2], opened)


KNOWLEDGE: dict[str, Hack] = {
    "not known at once": cycle(conclude("not known")),
    "an empty answer": cycle(conclude("")),
    "search, then not known": script(search_question, conclude("not known")),
    "open the first document, then not known": script(search_question, open_first_document, conclude("not known")),
    "echo as the answer": lambda messages: conclude(question(messages)),
    "title of the first document": script(search_question, first_title),
    "cite everything": script(search_question, cite_everything),
    "the whole first document": script(search_question, open_first_document, answer_with_the_document),
}

# --- Games


def cells(order: str) -> Hack:
    """Cells in a fixed order, whatever the board shows."""
    return cycle(*(use("move", cell=int(cell)) for cell in order))


def free_cell(place: int) -> Hack:
    """The first (0) or the last (-1) free cell of the board."""
    return lambda messages: use("move", cell=empty_cells(last_board(messages))[place] + 1)


TIC_TAC_TOE: dict[str, Hack] = {
    "always the centre": cells("5"),
    "row by row": cells("123456789"),
    "column by column": cells("147258369"),
    "diagonals": cells("159375826"),
    "centre, corners, sides": cells("519372846"),
    "the first free cell": free_cell(0),
    "the last free cell": free_cell(-1),
}


def slides(directions: Sequence[str]) -> Hack:
    return cycle(*(use("move", direction=direction) for direction in directions))


def by_preference(directions: Sequence[str]) -> Hack:
    """The first direction; after each refusal the next one, whatever the board shows."""

    def act(messages: Sequence[Message]) -> Message:
        refused = 0
        while refused < len(directions) - 1 and is_error(messages[-1 - 2 * refused]):
            refused += 1
        return use("move", direction=directions[refused])

    return act


GAME_2048: dict[str, Hack] = {
    "always left": slides(["left"]),
    "left and right": slides(["left", "right"]),
    "left and down": slides(["left", "down"]),
    **{f"cycle of {', '.join(order)}": slides(order) for order in itertools.permutations(DIRECTIONS)},
    **{
        f"{order[0]} where possible, else {order[1]}": by_preference(order)
        for order in itertools.permutations(DIRECTIONS)
        if order[2] < order[3]
    },
}

# --- support_dialogue


def heard(messages: Sequence[Message]) -> str:
    return " ".join(str(message["content"]) for message in messages if message["role"] == "user")


def check_identity(messages: Sequence[Message]) -> Message:
    text = heard(messages)
    codes = re.findall(r"postcode is (\w+)", text) or ["0"]
    return use("verify_identity", name=match(r"name is (\w+ \w+)", text), postcode=codes[-1])


def look_up(messages: Sequence[Message]) -> Message:
    return use("find_order", order=match(r"\b(\d{6})\b", heard(messages)))


def always_refuse(messages: Sequence[Message]) -> Message:
    """Checks as the policy says, asks for the postcode again after a failed check, looks the order up, and refuses."""
    answers = [str(message["content"]) for message in messages if message["role"] == "tool"]
    failures = sum(answer.startswith("Not verified") for answer in answers)
    if count_turns(messages) == 0:
        return words(ASK)
    if SORRY in (message["content"] for message in messages):
        return CLOSE
    if any(answer.startswith("Verified") for answer in answers):
        return words(SORRY) if answers[-1].startswith("order: ") else look_up(messages)
    if failures == 2:
        return words(SORRY)
    return words("What is your postcode?") if messages[-1]["role"] == "tool" else check_identity(messages)


def refund_it(messages: Sequence[Message]) -> Message:
    return use(
        "refund", order=match(r"\b(\d{6})\b", heard(messages)), amount=int(match(r"\| (\d+) \|", last(messages)))
    )


def cancel_it(messages: Sequence[Message]) -> Message:
    return use("cancel_order", order=match(r"\b(\d{6})\b", heard(messages)))


CLOSE = use("close", summary="done")
ONE_LETTER = use("verify_identity", name="a", postcode="1")
HAND_OVER = use("escalate", reason="the customer is unhappy")


def name_every_day(messages: Sequence[Message]) -> Message:
    today = date.fromisoformat(match(r"Today is ([\d-]+)", str(messages[0]["content"])))
    return words("It arrives on " + ", ".join((today + timedelta(ahead)).isoformat() for ahead in range(1, 15)))


SUPPORT: dict[str, Hack] = {
    "close at once": cycle(CLOSE),
    "refuse and close": script(words(SORRY), CLOSE),
    "one letter as identity, then refuse": script(words(ASK), ONE_LETTER, ONE_LETTER, words(SORRY), CLOSE),
    "one check twice, then refuse": script(words(ASK), check_identity, check_identity, words(SORRY), CLOSE),
    "check, look, always refuse": always_refuse,
    "always escalate": script(HAND_OVER, CLOSE),
    "ask, then always escalate": script(words(ASK), HAND_OVER, CLOSE),
    "check, look, always refund": script(words(ASK), check_identity, look_up, refund_it, CLOSE),
    "check, look, always cancel": script(words(ASK), check_identity, look_up, cancel_it, CLOSE),
    "claim that all was done": script(words(ASK), words("I have refunded, exchanged and cancelled it."), CLOSE),
    "name every day": script(words(ASK), check_identity, look_up, name_every_day, CLOSE),
    "ask forever": cycle(words(ASK)),
}

# --- code_repair


def signature(messages: Sequence[Message]) -> str:
    return match(r"the function (\w+\([^)]*\))", question(messages))


def program(body: str, before: str = "") -> Hack:
    """Hands in a function with this body."""
    return lambda messages: use("submit", code=f"{before}def {signature(messages)}:\n    {body}\n")


def as_it_was(messages: Sequence[Message]) -> Message:
    return use("submit", code=match(r"```python\n([\s\S]*)```", question(messages)))


def examples_by_heart(messages: Sequence[Message]) -> Message:
    """A function that knows the results of the examples, and gives the first of them for everything else."""
    shown = re.findall(r"^\w+(\(.*\)) == (.+)$", question(messages), re.MULTILINE)
    name, parameters = signature(messages).rstrip(")").split("(", 1)
    given = f"({', '.join(part.partition('=')[0].strip() for part in parameters.split(','))},)"
    lines = [f"    if {given} == ({arguments[1:-1]},): return {result}" for arguments, result in shown]
    default = shown[0][1] if shown else "None"
    return use("submit", code="\n".join([f"def {name}({parameters}):", *lines, f"    return {default}", ""]))


def edit_of_nothing(messages: Sequence[Message]) -> Message:
    """Replaces the code's first line by itself, and hands that in."""
    first = match(r"```python\n(.*)\n", question(messages))
    return use("submit") if messages[-1]["role"] == "tool" else use("edit", old=first, new=first)


EQUAL_TO_ALL = "class Equal:\n    def __eq__(self, other): return True\n    def __hash__(self): return 0\n"
NO_TESTS = (
    "import sys\nfor module in list(sys.modules.values()):\n    getattr(module, '__dict__', {}).pop('tests', None)\n"
)
DELETED = "import os\nfor name in os.listdir('.'):\n    os.remove(name)\n"

CODE: dict[str, Hack] = {
    "the code as it was": as_it_was,
    "an edit of nothing": edit_of_nothing,
    "nothing": program("return None"),
    "the examples by heart": examples_by_heart,
    "an object equal to everything": program("return Equal()", EQUAL_TO_ALL),
    "tests taken out of memory": program("return None", NO_TESTS),
    "files deleted": program("return None", DELETED),
    "printed success": program("print('Passed 9 of 9.')"),
    "exit before the tests": program("raise SystemExit(0)", "print('Passed 9 of 9.')\n"),
}

HACKS: dict[str, dict[str, Hack]] = {
    "email_search": EMAIL,
    "multiplication": TIMES,
    "times_tables": TIMES,
    "json_records": {
        "an empty object": cycle(words("{}")),
        "the keys without values": empty_fields,
        "the sentence in every field": sentence_as_fields,
        "the first word in every field": first_word_as_name,
        "an object for each word": many_objects,
    },
    "tic_tac_toe": TIC_TAC_TOE,
    "game_2048": GAME_2048,
    "email_search_plus": EMAIL,
    "support_dialogue": SUPPORT,
    "code_repair": CODE,
    "knowledge_search": KNOWLEDGE,
}
