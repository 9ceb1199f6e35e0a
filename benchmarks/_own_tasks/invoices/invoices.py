"""Accounts: remind a customer of one open invoice, the oldest or the largest."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Literal

from environments import base
from environments.base import Env, Message, Scenario, Split, tool

Row = dict[str, str]
TASKS = {
    "oldest": (
        "Remind {customer} of its oldest open invoice.",
        "{customer} has not paid for a long time. Send a reminder for the invoice that was due first.",
        "Please chase {customer}: the invoice with the earliest due date that is still open.",
        "Reminder to {customer} for what has been overdue longest",
    ),
    "largest": (
        "Remind {customer} of its largest open invoice.",
        "{customer} owes us a lot. Send a reminder for the invoice with the highest amount.",
        "Please chase {customer}: the open invoice with the biggest sum.",
        "Reminder to {customer} for the open invoice that is worth most",
    ),
}


def open_invoices(rows: list[Row], customer: str) -> list[Row]:
    return [row for row in rows if row["customer"] == customer and row["status"] == "open"]


class Invoices(Env):
    """One reminder to send."""

    max_turns = 5
    sources = ("customer",)
    openings_repeat = True
    secret = ("number",)
    shown = ("list_invoices",)

    @classmethod
    def load(cls, folder: Path) -> list[Row]:
        return list(csv.DictReader(io.StringIO(base.read_text(folder / "invoices.csv"))))

    @classmethod
    def scenarios(cls, data: list[Row], split: Split, count: int, seed: int) -> list[Scenario]:
        shares: dict[Split, float] = {"train": 0.5, "val": 0.22, "test": 0.28}
        customers = sorted({row["customer"] for row in data if base.split_of(row["customer"], shares) == split})
        reminders = [(customer, kind, form) for customer in customers for kind in TASKS for form in (0, 1, 2, 3)]
        if count > len(reminders):
            raise ValueError(f"{count} is too many: {split} has {len(reminders)} reminders")
        made = []
        for customer, kind, form in Random(f"{seed}, {split}").sample(reminders, count):
            rows = open_invoices(data, customer)
            chosen = (
                min(rows, key=lambda row: row["due"])
                if kind == "oldest"
                else max(rows, key=lambda row: float(row["amount"]))
            )
            asked = {"role": "user", "content": TASKS[kind][form].format(customer=customer)}
            hidden = {"customer": customer, "number": chosen["number"], "kind": kind}
            made.append(Scenario.make("invoices", split, [asked], hidden))
        return made

    @tool
    def list_invoices(self, customer: str, status: Literal["open", "paid"]) -> list[Row] | str:
        """List a customer's invoices.

        Args:
            customer: the customer's name
            status: whether those that are open or those that were paid
        """
        rows = [row for row in self.data if row["customer"] == customer and row["status"] == status]
        if not rows:
            return base.error("there are none")
        return [{key: row[key] for key in ("number", "due", "amount")} for row in rows]

    @tool
    def send_reminder(self, number: int) -> str:
        """Send a reminder for an invoice.

        Args:
            number: the number of the invoice
        """
        if str(number) not in {row["number"] for row in self.data}:
            return base.error("there is no invoice with this number")
        self.done = True
        return "The reminder was sent."

    @classmethod
    def success(cls, scenario: Scenario, messages: Sequence[Message]) -> bool:
        sent = base.accepted(messages, "send_reminder")
        return sent is not None and str(sent["number"]) == scenario.data["number"]
