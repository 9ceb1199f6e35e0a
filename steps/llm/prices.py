"""Prices: what well-known models cost per million tokens, for commands that are told a model's name alone.

    python -m steps.llm.prices            # the table, with the source and the day of each line
    python -m steps.llm.prices gpt-5-mini # one model, as `endpoint:` in params.yaml has it

They change without notice: they are a start for a budget, and what --price-in and --price-out say counts instead. In US
dollars: list prices, standard tier, of prompts up to the length at which a dearer tier begins, no discount for cached input.
Left out: params.yaml, which must say its prices itself, or a newer table would change what a stored run cost.

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
    """Of a model at one provider; another server that has a model of this name is another matter."""

    provider: str
    model: str
    price_in: float  # US dollars per million tokens
    price_out: float
    seen: str  # day


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


def known(model: str, base_url: str) -> Price | None:
    """The price of a model at the provider that this address is of; None where it is not in the table."""
    host = urlsplit(base_url).hostname
    return next((one for one in PRICES if (one.model, HOSTS[one.provider]) == (model, host)), None)


def show(model: str | None) -> None:
    """One model's line for params.yaml, or all. UserError names those there are."""
    found = [one for one in PRICES if model in (None, one.model)]
    if not found:
        raise UserError(
            f"the table has no {model}; it has {', '.join(one.model for one in PRICES)}: look it up at its provider"
        )
    for one in found:
        print(
            f"{{model: {one.model}, price_in: {one.price_in:g}, price_out: {one.price_out:g}}} # {one.provider}, {one.seen}"
        )


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m steps.llm.prices", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("model", nargs="?", help="its name (default: all)")
    options = parser.parse_args(words)
    return exit_code(lambda: show(options.model))


if __name__ == "__main__":
    sys.exit(main())
