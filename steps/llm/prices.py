"""What well-known models cost per million tokens, for commands that get only a model's name.

    python -m steps.llm.prices            # the table, with the provider and the day of each price
    python -m steps.llm.prices gpt-5-mini # one model, as params.yaml takes it under `endpoint:`

Prices change without notice: these are a start for a budget, and --price-in and --price-out replace them. They are list
prices in US dollars, of the standard tier, for prompts below the length at which a dearer tier begins, without discount for
cached input. params.yaml does not use them: it must state its prices, or a newer table would change what a stored run cost.

The source is github.com/anomalyco/models.dev at commit f3fc692 (2026-07-02), providers/<provider>/models/<model>.toml, and
`seen` the day on which that file last changed. All but OpenRouter's agree with github.com/simonw/llm-prices at 723ef0b
(2026-08-05).
"""

from __future__ import annotations

import argparse
import sys
from typing import NamedTuple
from urllib.parse import urlsplit

from steps.core.errors import UserError
from steps.core.terminal import exit_code

HOSTS = {
    "openai": "api.openai.com",
    "anthropic": "api.anthropic.com",
    "google": "generativelanguage.googleapis.com",
    "openrouter": "openrouter.ai",
}


class Price(NamedTuple):
    """The price of a model at one provider; other servers may have a model of the same name at another price."""

    provider: str
    model: str
    price_in: float  # US dollars per million tokens
    price_out: float
    seen: str  # day on which the source last changed


PRICES = (
    Price("openai", "gpt-4.1-mini", 0.40, 1.60, "2026-04-02"),
    Price("openai", "gpt-5", 1.25, 10.00, "2026-06-08"),
    Price("openai", "gpt-5-mini", 0.25, 2.00, "2026-06-08"),
    Price("openai", "gpt-5-nano", 0.05, 0.40, "2026-06-08"),
    Price("openai", "gpt-5.1", 1.25, 10.00, "2026-06-08"),
    Price("openai", "gpt-5.4", 2.50, 15.00, "2026-06-08"),
    Price("openai", "gpt-5.4-mini", 0.75, 4.50, "2026-06-08"),
    Price("openai", "gpt-5.4-nano", 0.20, 1.25, "2026-06-08"),
    Price("anthropic", "claude-haiku-4-5", 1.00, 5.00, "2026-06-01"),
    Price("anthropic", "claude-sonnet-4-5", 3.00, 15.00, "2026-06-01"),
    Price("anthropic", "claude-opus-4-8", 5.00, 25.00, "2026-06-01"),
    Price("google", "gemini-2.5-flash-lite", 0.10, 0.40, "2026-06-03"),
    Price("google", "gemini-2.5-flash", 0.30, 2.50, "2026-06-15"),
    Price("google", "gemini-2.5-pro", 1.25, 10.00, "2026-06-15"),
    Price("google", "gemini-3.5-flash", 1.50, 9.00, "2026-06-03"),
    Price("openrouter", "qwen/qwen3-30b-a3b-instruct-2507", 0.04815, 0.19305, "2026-06-26"),
    Price("openrouter", "qwen/qwen3-235b-a22b-2507", 0.09, 0.10, "2026-06-07"),
    Price("openrouter", "qwen/qwen3.7-plus", 0.32, 1.28, "2026-06-12"),
)


def price_of(model: str, base_url: str) -> Price | None:
    """The price of a model at the provider with this address; None where the table does not have it."""
    host = urlsplit(base_url).hostname
    return next((price for price in PRICES if (price.model, HOSTS[price.provider]) == (model, host)), None)


def show(model: str | None) -> None:
    """Print one model's line for params.yaml, or all. UserError, which names the table's models, for any other."""
    prices = [price for price in PRICES if model in (None, price.model)]
    if not prices:
        names = ", ".join(price.model for price in PRICES)
        raise UserError(f"the table has no {model}; it has {names}: look it up at its provider")
    for price in prices:
        amounts = f"price_in: {price.price_in:g}, price_out: {price.price_out:g}"
        print(f"{{model: {price.model}, {amounts}}} # {price.provider}, {price.seen}")


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m steps.llm.prices", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("model", nargs="?", help="its name (default: all)")
    options = parser.parse_args(words)
    return exit_code(lambda: show(options.model))


if __name__ == "__main__":
    sys.exit(main())
