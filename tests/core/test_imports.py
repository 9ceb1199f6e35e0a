"""Imports without the collector, and without packages that others import for what nobody asks of them."""

from __future__ import annotations

import gc
import importlib.util
import sys

import pytest

from steps.core.imports import hidden, uncollected


def fail_to_import() -> None:
    with uncollected():
        assert not gc.isenabled()
        raise ImportError("half way")


def test_nothing_is_collected_while_packages_are_imported() -> None:
    before = gc.get_freeze_count()
    with pytest.raises(ImportError, match="half way"):
        fail_to_import()
    assert gc.isenabled()
    assert gc.get_freeze_count() > before
    gc.unfreeze()


def test_hidden_packages_seem_not_to_be_installed_and_come_back() -> None:
    name = "this"  # a module of Python that nothing imports
    assert "json" in sys.modules
    assert name not in sys.modules
    with hidden(name, "json"):
        assert importlib.util.find_spec(name) is None, "how transformers asks whether a package is installed"
        with pytest.raises(ImportError):
            importlib.import_module(name)
        assert importlib.import_module("json").dumps([1]) == "[1]", "it was imported before, and stays"
    assert importlib.util.find_spec(name) is not None
    assert name not in sys.modules
