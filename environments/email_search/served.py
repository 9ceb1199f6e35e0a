"""Questions about emails from conversations with a served policy: whose inbox, which answer, and which mail holds it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from environments import base
from environments.base import Message

if TYPE_CHECKING:
    from environments.email_search.inbox import Mailbox

VALUE = re.compile(r" is (?:now )?((?:[A-Z]|\d)[^.]*)\.")  # that a mail states
HEAD = re.compile(r"id: (.*)\ndate: (.*)\nfrom: (.*)\nto: (.*)\nsubject: (.*)\n")  # of a mail as it is read


def question(
    mailbox: Mailbox, readers: Sequence[str], plain: Callable[[str], str], conversation: dict[str, Any]
) -> dict[str, Any]:
    """The fields of a question as questions.jsonl has them. ValueError where a conversation is none, or nothing says its
    inbox, its right answer, or a mail that holds it.

    The inbox is that of the metadata's `owner`, or of a mail that was read. The mail is one that was cited or read, else the
    only one that holds the answer and whose subject is in the question. `plain` is the form in which answers are
    compared.
    """
    asked = [str(message["content"]) for message in conversation["messages"] if message["role"] == "user"]
    if len(asked) != 1:
        raise ValueError(f"it asks {len(asked)} times, and a scenario is one question")
    read = [call for call in base.tool_calls(conversation["messages"]) if call[0] in readers]
    owner = conversation["metadata"].get("owner") or owner_of(mailbox, [str(call[2]["content"]) for call in read])
    answer, cited = right(conversation["answer"] or {})
    if base.normalise(answer) in ("", "i don t know", "i do not know", "unknown"):
        raise ValueError("nobody said what the right answer is")
    if owner not in mailbox.mails:
        raise ValueError("there is no inbox of the owner that its metadata names")
    inbox = mailbox[owner]
    longest = max(re.findall(r"\w+", answer), key=len)
    query = "select id, subject, body from mail_by_id where body like ?"
    rows = inbox.execute(query, (f"%{longest}%",)).fetchall()
    holding = {id: subject for id, subject, body in rows if f" {plain(answer)} " in f" {plain(body)} "}
    ids = [*cited, *(str(arguments.get("id")) for _, arguments, _ in read)]
    words = set(plain(asked[0]).split())
    about = [id for id, subject in holding.items() if {*plain(subject.removeprefix("Re: ")).split()} <= words]
    source = next((id for id in ids if id in holding), about[0] if len(about) == 1 else None)
    if source is None:
        raise ValueError("no mail that it read or cites holds the right answer, nor a single one about its question")
    subject = holding[source].removeprefix("Re: ")
    query = "select body from mail_by_id where subject in (?, ?)"
    bodies = inbox.execute(query, (subject, f"Re: {subject}")).fetchall()
    stated = {match[1] for (body,) in bodies if (match := VALUE.search(body))}
    kind = "sender" if " according to " in asked[0] else "latest" if " latest " in asked[0] else "month"
    fields = {"owner": owner, "kind": kind, "question": asked[0], "answer": answer, "source_ids": [source]}
    return fields | {"conflicting": sorted(stated - {answer})}


def owner_of(mailbox: Mailbox, texts: Sequence[str]) -> str:
    """Whose inbox holds the mails that were read, as the policy saw them. ValueError where that is not clear."""
    for text in texts:
        head = HEAD.match(text)
        shown = head.groups() if head else ()
        owners = [
            owner
            for owner, mails in mailbox.mails.items()
            if any(tuple(mail[key] for key in ("id", "date", "sender", "to", "subject")) == shown for mail in mails)
        ]
        if len(owners) == 1:
            return owners[0]
    raise ValueError("nothing says whose inbox it is about: no `owner` in its metadata, and no mail that it read")


def right(answer: Message) -> tuple[str, list[str]]:
    """(the answer in words, the ids that it cites) in a message that calls return_final_answer, or that is plain words."""
    for call in answer.get("tool_calls") or ():
        arguments = call["function"]["arguments"]
        if call["function"]["name"] == "return_final_answer" and isinstance(arguments, dict):
            cited = arguments.get("source_ids")
            return str(arguments.get("answer") or ""), [str(id) for id in cited] if isinstance(cited, list) else []
    return "" if answer.get("tool_calls") else str(answer.get("content") or "").strip(), []


def corrected(answer: Message, correction: Message) -> Message:
    """Words that correct the final answer, as the call that gives it."""
    given, cited = right(answer)
    if correction.get("tool_calls") or not answer.get("tool_calls") or not given:
        return correction
    return base.use("return_final_answer", answer=str(correction["content"]).strip(), source_ids=cited)
