"""Command-line options that name a model and its server (steps/analytics/baselines.py, steps/data/generate.py)."""

from __future__ import annotations

import argparse
from typing import Any

from pydantic import ValidationError

from steps.core.errors import UserError
from steps.core.params import Endpoint, describe
from steps.llm import prices

OPTIONS = {  # option: (field of Endpoint, type, help)
    "--model": ("model", str, "the model to ask"),
    "--url": ("base_url", str, "its server (default: OpenAI's); http://localhost:8000/v1"),
    "--key-env": ("api_key_env", str, "the environment variable that holds the key (default: OPENAI_API_KEY)"),
    "--price-in": ("price_in", float, "of a million input tokens (default: as in steps/llm/prices.py, else 0)"),
    "--price-out": ("price_out", float, "of a million output tokens (likewise)"),
    "--max-cost": ("max_cost", float, "stop before new calls cost more"),
    "--max-tokens": ("max_tokens", int, "of an answer (default: 1024)"),
    "--temperature": ("temperature", float, "(default: 0)"),
    "--connections": ("max_connections", int, "calls at once (default: 16)"),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the model that is asked")
    for option, (field, kind, text) in OPTIONS.items():
        group.add_argument(option, dest=f"endpoint_{field}", type=kind, metavar=option[2:].upper(), help=text)


def endpoint_of(words: argparse.Namespace, **defaults: Any) -> Endpoint | None:
    """The endpoint that the options describe; None without --model. UserError where their values are not valid."""
    options = {field: getattr(words, f"endpoint_{field}") for field, _, _ in OPTIONS.values()}
    fields = defaults | {field: value for field, value in options.items() if value is not None}
    if "model" not in fields:
        if fields.keys() - defaults.keys():
            raise UserError("the options of a model need --model, its name")
        return None
    try:
        price = prices.price_of(fields["model"], fields.get("base_url", prices.OPENAI))
        if price is not None:
            fields = {"price_in": price.price_in, "price_out": price.price_out} | fields
        return Endpoint(**fields)
    except ValidationError as problem:
        raise UserError(describe(problem)) from None
