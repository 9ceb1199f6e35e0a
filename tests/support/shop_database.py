"""A task with the tools of mcp-server-sqlite, a package of PyPI as it is: its database, and stand-ins for two models.

    with Server(stand_in) as server: …      # tests/support/openai_server.py; the body's `model` says which one is meant

The model "writer" writes scenarios from a list of questions, and "player" answers them with queries. Neither is a model.
"""

from __future__ import annotations

import json
import re
import sqlite3
from pathlib import Path
from random import Random
from typing import Any

from tests.support.openai_server import Answer, Body, last

PACKAGES = ("mcp-server-sqlite==2025.4.25", "mcp<2")  # the package does not work with the SDK's second version
DESCRIPTION = "You answer questions about a shop. Its database has the tables products and orders; use your tools."
EXAMPLES = ["How many products are there?"]
PLACES = ("Lima", "Oslo", "Quito", "Hanoi", "Accra", "Turin", "Perth", "Kyoto", "Minsk", "Tunis")
GOODS = ("lamp", "chair", "kettle", "clock", "rug", "vase", "shelf", "mirror", "pillow", "basket")
QUERIES = {  # question: query
    "How many orders for a {good} came from {place}?": "SELECT COUNT(*) FROM orders WHERE "
    "product='{good}' AND place='{place}'",
    "Which price does the shop ask for one {good}, sent to {place}?": "SELECT price FROM products WHERE name='{good}'",
    "What was the largest order of any {good} that {place} ever placed?": "SELECT MAX(pieces) FROM orders WHERE "
    "product='{good}' AND place='{place}'",
}


def make(path: Path) -> None:
    """The database, the same bytes each time."""
    rng = Random("shop")
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE products (name TEXT, price INTEGER)")
        database.execute("CREATE TABLE orders (product TEXT, place TEXT, pieces INTEGER)")
        database.executemany("INSERT INTO products VALUES (?, ?)", [(name, rng.randrange(5, 90)) for name in GOODS])
        rows = [(rng.choice(GOODS), rng.choice(PLACES), rng.randrange(1, 20)) for _ in range(400)]
        database.executemany("INSERT INTO orders VALUES (?, ?, ?)", rows)
    database.close()


def stand_in(body: Body) -> Answer:
    if body["model"] == "writer":
        number = int(last(body).rpartition("This is number ")[2].partition(":")[0])
        place, good = PLACES[number % len(PLACES)], GOODS[number // len(PLACES) % len(GOODS)]
        asked = list(QUERIES)[number % len(QUERIES)].format(place=place, good=good)
        return json.dumps({"messages": [{"role": "user", "content": asked}], "data": {}, "difficulty": 1})
    asked = next(str(message["content"]) for message in body["messages"] if message["role"] == "user")
    if body["messages"][-1]["role"] == "tool":
        return f"The database says {body['messages'][-1]['content']}."
    place, good = (next(name for name in names if re.search(rf"\b{name}\b", asked)) for names in (PLACES, GOODS))
    form = next(form for form in QUERIES if form.format(place=place, good=good) == asked)
    query: dict[str, Any] = {"query": QUERIES[form].format(place=place, good=good)}
    function = {"name": "read_query", "arguments": json.dumps(query)}
    return {"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "type": "function", "function": function}]}
