"""The price table: what it gives a command, and that it speaks of nothing but the provider it names."""

from __future__ import annotations

import argparse

import pytest

from addons.models import prices
from addons.models.section import Endpoint
from steps.core.errors import UserError


def parse_endpoint(*words: str) -> Endpoint:
    parser = argparse.ArgumentParser()
    prices.add_options(parser)
    chosen = prices.endpoint_of(parser.parse_args(words))
    assert chosen is not None
    return chosen


def test_a_models_name_is_enough_for_its_cost() -> None:
    chosen = parse_endpoint("--model", "gpt-5-mini", "--max-cost", "1")
    assert (chosen.price_in, chosen.price_out) == (0.25, 2.0)
    assert chosen.cost(4_000_000, 500_000) == 2.0  # 4 * 0.25 + 0.5 * 2
    router = parse_endpoint("--model", "qwen/qwen3.7-plus", "--url", "https://openrouter.ai/api/v1")
    assert (router.price_in, router.price_out) == (0.32, 1.28)


def test_what_is_given_counts_instead() -> None:
    chosen = parse_endpoint("--model", "gpt-5-mini", "--price-in", "0.125")
    assert (chosen.price_in, chosen.price_out) == (0.125, 2.0)
    free = parse_endpoint("--model", "gpt-5-mini", "--price-in", "0", "--price-out", "0")
    assert free.cost(10**6, 10**6) == 0


@pytest.mark.parametrize(
    ("model", "url"),
    [
        ("gpt-5-mini", "http://localhost:8000/v1"),  # one's own server, under that name
        ("gpt-5-mini", "https://api.openai.com.example.org/v1"),
        ("qwen/qwen3.7-plus", "https://api.openai.com/v1"),
        ("gpt-that-is-not", "https://api.openai.com/v1"),
    ],
)
def test_another_server_or_model_has_no_price(model: str, url: str) -> None:
    assert prices.price_of(model, url) is None
    with pytest.raises(UserError, match="max_cost needs price_in and price_out"):
        parse_endpoint("--model", model, "--url", url, "--max-cost", "1")


@pytest.mark.parametrize(
    ("model", "url", "price"),
    [  # as the providers' own pages had them in 2026
        ("gpt-5", "https://api.openai.com/v1", ("openai", 1.25, 10.0)),
        ("gpt-5-mini-2025-08-07", "https://api.openai.com/v1", ("openai", 0.25, 2.0)),
        ("claude-haiku-4-5", "https://api.anthropic.com/v1", ("anthropic", 1.0, 5.0)),
        ("gemini-2.5-flash", "https://generativelanguage.googleapis.com/v1beta/openai", ("google", 0.3, 2.5)),
    ],
)
def test_models_of_four_tables(model: str, url: str, price: tuple[str, float, float]) -> None:
    assert prices.price_of(model, url) == price


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert prices.main(["gpt-5-mini"]) == 0
    assert capsys.readouterr().out == "{model: gpt-5-mini, price_in: 0.25, price_out: 2} # openai\n"
    assert prices.main(["nobody"]) == 2
    assert "the table has no nobody at https://api.openai.com/v1: look its price up" in capsys.readouterr().err
