"""What well-known models cost per million tokens, for commands that get only a model's name.

    python -m steps.llm.prices gpt-5-mini                                   # as params.yaml takes it under `endpoint:`
    python -m steps.llm.prices qwen/qwen3.7-plus --url https://openrouter.ai/api/v1

The table is that of the package genai-prices, in the version of the lock file; nothing is downloaded. Prices change without
notice: these are a start for a budget, and --price-in and --price-out replace them. They are list prices in US dollars, for
prompts below the length at which a dearer tier begins, without discount for cached input. params.yaml does not use them: it
must state its prices, or a newer table would change what a stored run cost.
"""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime
from typing import Any, NamedTuple

from steps.core.errors import UserError
from steps.core.params import Endpoint
from steps.core.terminal import command_parser, exit_code

OPENAI = Endpoint.model_fields["base_url"].default


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


def show(model: str, base_url: str) -> None:
    """Print a model's line for params.yaml. UserError where the table does not have it."""
    price = price_of(model, base_url)
    if price is None:
        raise UserError(f"the table has no {model} at {base_url}: look its price up at its provider")
    print(f"{{model: {model}, price_in: {price.price_in:g}, price_out: {price.price_out:g}}} # {price.provider}")


def main(words: list[str] | None = None) -> int:
    parser = command_parser("steps.llm.prices", __doc__)
    parser.add_argument("model", help="its name at its provider")
    parser.add_argument("--url", default=OPENAI, help="the provider's address (default: OpenAI's)")
    options = parser.parse_args(words)
    return exit_code(lambda: show(options.model, options.url))


if __name__ == "__main__":
    sys.exit(main())
