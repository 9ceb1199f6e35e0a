"""What well-known models cost per million tokens, for commands that get only a model's name.

    python -m addons.models.prices gpt-5-mini                                   # as params.yaml takes it under `endpoint:`
    python -m addons.models.prices qwen/qwen3.7-plus --url https://openrouter.ai/api/v1

The table is that of the package genai-prices, in the version of the lock file; nothing is downloaded. Prices change without
notice: these are a start for a budget, and --price-in and --price-out replace them. They are list prices in US dollars, for
prompts below the length at which a dearer tier begins, without discount for cached input. params.yaml does not use them: it
must state its prices, or a newer table would change what a stored run cost. `add_options` gives commands the options
that name a model.
"""

from __future__ import annotations

import argparse
import re
import sys
from datetime import UTC, datetime
from typing import Any, NamedTuple

from pydantic import ValidationError

from addons.models.section import Endpoint
from steps.core.errors import UserError
from steps.core.params import describe
from steps.core.terminal import command_parser, exit_code

OPENAI = Endpoint.model_fields["base_url"].default
OPTIONS = {  # option: (field of Endpoint, type, help)
    "--model": ("model", str, "the model to ask"),
    "--url": ("base_url", str, "its server (default: OpenAI's); http://localhost:8000/v1"),
    "--key-env": ("api_key_env", str, "the environment variable that holds the key (default: OPENAI_API_KEY)"),
    "--price-in": ("price_in", float, "of a million input tokens (default: as in addons/models/prices.py, else 0)"),
    "--price-out": ("price_out", float, "of a million output tokens (likewise)"),
    "--max-cost": ("max_cost", float, "stop before new calls cost more"),
    "--max-tokens": ("max_tokens", int, "of an answer (default: 1024)"),
    "--temperature": ("temperature", float, "(default: 0)"),
    "--connections": ("max_connections", int, "calls at once (default: 16)"),
}


class Price(NamedTuple):
    """The price of a model at one provider; other servers may have a model of the same name at another price."""

    provider: str
    price_in: float  # US dollars per million tokens
    price_out: float


def price_of(model: str, base_url: str) -> Price | None:
    """The price of a model at the provider with this address; None where the table does not have it."""
    from genai_prices.data_snapshot import get_snapshot

    try:
        provider, entry = get_snapshot().find_provider_model(model, None, None, base_url)
    except LookupError:
        return None
    if not re.match(f"(?:{provider.api_pattern})(?:[:/]|$)", base_url):
        return None  # a longer host name that begins like the provider's
    prices = entry.get_prices(datetime.now(UTC))
    amounts: list[Any] = [getattr(price, "base", price) for price in (prices.input_mtok, prices.output_mtok)]
    return None if None in amounts else Price(provider.id, *map(float, amounts))


def add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the model that is asked")
    for option, (field, kind, text) in OPTIONS.items():
        group.add_argument(option, dest=f"endpoint_{field}", type=kind, metavar=option[2:].upper(), help=text)


def endpoint_of(words: argparse.Namespace, **defaults: Any) -> Endpoint | None:
    """The endpoint that the options describe; None without --model. UserError where their values are not valid."""
    options = {field: getattr(words, f"endpoint_{field}") for field, _, _ in OPTIONS.values()}
    fields: dict[str, Any] = defaults | {field: value for field, value in options.items() if value is not None}
    if "model" not in fields:
        if fields.keys() - defaults.keys():
            raise UserError("the options of a model need --model, its name")
        return None
    try:
        price = price_of(fields["model"], fields.get("base_url", OPENAI))
        if price is not None:
            fields = dict[str, Any](price_in=price.price_in, price_out=price.price_out) | fields
        return Endpoint(**fields)
    except ValidationError as problem:
        raise UserError(describe(problem)) from None


def show(model: str, base_url: str) -> None:
    """Print a model's line for params.yaml. UserError where the table does not have it."""
    price = price_of(model, base_url)
    if price is None:
        raise UserError(f"the table has no {model} at {base_url}: look its price up at its provider")
    print(f"{{model: {model}, price_in: {price.price_in:g}, price_out: {price.price_out:g}}} # {price.provider}")


def main(words: list[str] | None = None) -> int:
    parser = command_parser("addons.models.prices", __doc__)
    parser.add_argument("model", help="its name at its provider")
    parser.add_argument("--url", default=OPENAI, help="the provider's address (default: OpenAI's)")
    options = parser.parse_args(words)
    return exit_code(lambda: show(options.model, options.url))


if __name__ == "__main__":
    sys.exit(main())
