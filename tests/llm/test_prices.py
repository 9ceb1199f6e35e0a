"""The price table: what it gives a command, and that it speaks of nothing but the provider it names."""

from __future__ import annotations

import argparse

import pytest

from steps.core.errors import UserError
from steps.core.params import Endpoint
from steps.llm import endpoint, prices


def given(*words: str) -> Endpoint:
    parser = argparse.ArgumentParser()
    endpoint.add_options(parser)
    found = endpoint.endpoint_of(parser.parse_args(words))
    assert found is not None
    return found


def test_a_models_name_is_enough_for_its_cost() -> None:
    found = given("--model", "gpt-5-mini", "--max-cost", "1")
    assert (found.price_in, found.price_out) == (0.25, 2.0)
    assert found.cost(4_000_000, 500_000) == 2.0  # 4 * 0.25 + 0.5 * 2
    router = given("--model", "qwen/qwen3.7-plus", "--url", "https://openrouter.ai/api/v1")
    assert (router.price_in, router.price_out) == (0.32, 1.28)


def test_what_is_given_counts_instead() -> None:
    found = given("--model", "gpt-5-mini", "--price-in", "0.125")
    assert (found.price_in, found.price_out) == (0.125, 2.0)
    free = given("--model", "gpt-5-mini", "--price-in", "0", "--price-out", "0")
    assert free.cost(10**6, 10**6) == 0


@pytest.mark.parametrize(
    ("model", "url"),
    [
        ("gpt-5-mini", "http://localhost:8000/v1"),  # one's own server, under that name
        ("gpt-5-mini", "https://api.openai.com.example.org/v1"),
        ("qwen/qwen3.7-plus", "https://api.openai.com/v1"),
        ("gpt-5-mini-2025-08-07", "https://api.openai.com/v1"),
    ],
)
def test_another_server_or_model_has_no_price(model: str, url: str) -> None:
    assert prices.price_of(model, url) is None
    with pytest.raises(UserError, match="max_cost needs price_in and price_out"):
        given("--model", model, "--url", url, "--max-cost", "1")


def test_the_table_is_sound() -> None:
    names = [(one.provider, one.model) for one in prices.PRICES]
    assert len(set(names)) == len(names)
    for one in prices.PRICES:
        assert 0 < one.price_in <= one.price_out < 100, one
        assert len(one.seen) == 10, one
        assert prices.price_of(one.model, f"https://{prices.HOSTS[one.provider]}/v1") == one


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert prices.main(["gpt-5-mini"]) == 0
    assert capsys.readouterr().out == "{model: gpt-5-mini, price_in: 0.25, price_out: 2} # openai, 2026-06-08\n"
    assert prices.main([]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(prices.PRICES)
    assert prices.main(["nobody"]) == 2
    assert "the table has no nobody; it has gpt-4.1-mini" in capsys.readouterr().err
