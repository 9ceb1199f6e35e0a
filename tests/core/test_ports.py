"""What add-ons bring is looked up by name, and nothing of theirs is imported before."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from steps.core import manifests, masking, ports
from steps.core.errors import UserError
from tests.conftest import ROOT


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Two add-ons, of which one brings a sampler."""
    for name, brings in (("near", ""), ("far", '[sampler]\nswarm = "steps.core.stats:mean"\n')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "addon.toml").write_text(f'about = "It is {name}."\n{brings}')
    monkeypatch.setattr(manifests, "FOLDER", tmp_path)
    manifests.addons.cache_clear()
    masking.finer.cache_clear()
    yield tmp_path
    manifests.addons.cache_clear()
    masking.finer.cache_clear()


def test_what_an_addon_brings_is_found_by_its_name(folder: Path) -> None:
    assert [addon.name for addon in ports.addons()] == ["far", "near"]
    assert ports.names("sampler") == ["swarm"]
    assert ports.bring("sampler", "swarm", "policy.kind").__name__ == "mean"
    assert [each.__name__ for each in ports.every("sampler")] == ["mean"]
    assert list(ports.every("tracker")) == []


def test_what_no_addon_brings_is_refused_with_the_setting(folder: Path) -> None:
    reason = r"policy\.kind: ray is brought by an add-on that addons/ does not have \(there: swarm\)"
    with pytest.raises(UserError, match=reason):
        ports.bring("sampler", "ray", "policy.kind")


@pytest.mark.parametrize("text", ["about = ", "page = 'x'"])
def test_a_manifest_that_says_nothing_is_named(folder: Path, text: str) -> None:
    (folder / "near/addon.toml").write_text(text)
    with pytest.raises(UserError, match=r"near/addon\.toml does not say what the add-on brings"):
        ports.addons()


def test_a_misspelt_port_is_named(folder: Path) -> None:
    (folder / "near/addon.toml").write_text('about = "It is near."\n[trackers]\ncomet = "addons.near.comet:begin"\n')
    with pytest.raises(
        UserError, match=r"near/addon\.toml names ports that there are not: trackers \(there: advantages, "
    ):
        ports.addons()


def test_the_ports_are_those_that_the_docstring_lists() -> None:
    assert set(re.findall(r"^    (\w+)  +\S", ports.__doc__ or "", re.MULTILINE)) == ports.PORTS


def test_each_addon_has_a_manifest_and_each_object_is_there() -> None:
    folders = {path.name for path in (ROOT / "addons").iterdir() if (path / "__init__.py").exists()}
    assert folders == {addon.name for addon in ports.addons()}
    for addon in ports.addons():
        for brings in addon.brings.values():
            for place in brings.values():
                assert ports.load(place) is not None
                assert place.startswith(f"addons.{addon.name}.")
