"""The one reader of MLflow's versions: it goes through all pages, and says what a models:/ address names."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from steps.core.errors import UserError
from steps.project.store import pages
from steps.registry.model import Version, adapter_at


class Page(list[Any]):
    def __init__(self, entities: list[Any], token: str | None) -> None:
        super().__init__(entities)
        self.token = token


def test_a_search_is_read_to_its_last_page_with_its_filter() -> None:
    asked: list[tuple[str, str | None]] = []

    def search(filter_string: str, page_token: str | None) -> Page:
        asked.append((filter_string, page_token))
        number = int(page_token or 0)
        return Page([SimpleNamespace(version=number)], str(number + 1) if number < 2 else None)

    assert [entity.version for entity in pages(search, filter_string="name = 'toy'")] == [0, 1, 2]
    assert asked == [("name = 'toy'", None), ("name = 'toy'", "1"), ("name = 'toy'", "2")]


REGISTERED = [
    Version("toy", "2", ["challenger"], "b"),
    Version("toy", "1", ["champion", "previous"], "a"),
    Version("other", "7", [], "c"),
]


@pytest.mark.parametrize(
    ("address", "adapter"),
    [("models:/toy@previous", "a"), ("models:/toy/2", "b"), ("models:/other/7", "c"), ("run/004/adapter", None)],
)
def test_an_address_names_an_adapter(address: str, adapter: str | None) -> None:
    assert adapter_at(address, REGISTERED) == adapter


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("models:/toy/7", "holds an adapter; versions of toy: 2 @challenger, 1 @champion @previous"),
        ("models:/none@champion", "versions of none: none"),
        ("models:/other@champion", "other has no champion yet: `make promote` judges its newest version by the gate"),
        ("models:/toy", "write models:/<name>@<alias> or models:/<name>/<number>"),
    ],
)
def test_what_the_registry_lacks_is_a_sentence(address: str, sentence: str) -> None:
    with pytest.raises(UserError) as problem:
        adapter_at(address, REGISTERED)
    assert sentence in str(problem.value)
