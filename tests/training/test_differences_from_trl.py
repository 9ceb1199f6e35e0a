"""docs/update.md names every setting whose default is not TRL's, with both defaults."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from addons.terms import entropy
from steps.core.params import Update
from tests.conftest import ROOT


def of_trl() -> dict[str, Any]:
    """The defaults of TRL's GRPOConfig."""
    from trl import GRPOConfig

    fields = {field.name: field for field in dataclasses.fields(GRPOConfig)}
    return {
        name: field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        for name, field in fields.items()
    }


def rows() -> dict[str, tuple[str, str]]:
    """Setting -> (its default here, TRL's) in the table of the docs."""
    section = (ROOT / "docs/update.md").read_text().partition("\n## What differs from TRL\n")[2].partition("\n## ")[0]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in section.splitlines() if "| `" in line]
    return {name: (row[1], row[2]) for row in cells for name in re.findall(r"`(\w+)`", row[0])}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_default_that_is_not_trls_is_in_the_table(dtype: str) -> None:
    theirs, table = of_trl(), rows()
    ours = Update().of_dtype(dtype).model_dump()
    shared = ours.keys() & theirs.keys()
    assert len(shared) > 12
    chosen_later = ("max_steps", "gradient_checkpointing")  # None is a default of its own, and not "nothing reads it"
    read = {name for name in shared if ours[name] is not None or name in chosen_later}
    differing = {name for name in read if ours[name] != theirs[name]}
    assert differing - table.keys() == set()
    own = ours.keys() - theirs.keys() - {"launcher", "processes", "shard"}  # accelerate's in TRL
    about_loss = {name for name in own if not name.startswith(("max_sampler", "tokens_per", "gigpo", "truncat"))}
    assert about_loss - table.keys() == set()


@pytest.mark.parametrize(
    ("changed", "count"),
    [
        ({"loss_type": "sapo"}, 2),
        ({"loss_type": "vespo"}, 4),
        ({"use_adaptive_entropy": True}, 1),
        ({"sync_ref_model": True}, 2),
    ],
    ids=str,
)
def test_what_an_option_reads_has_trls_defaults(changed: dict[str, Any], count: int) -> None:
    theirs, usual, ours = of_trl(), Update().model_dump(), Update(**changed).model_dump()
    read = {name for name in ours if usual[name] is None and ours[name] is not None and name in theirs}
    assert len(read) == count
    assert {name: ours[name] for name in read} == {name: theirs[name] for name in read}


def test_the_weight_of_entropy_adapts_as_trls_does_by_default() -> None:
    theirs = of_trl()
    trls = [theirs[f"entropy_coef_{name}"] for name in ("min", "max", "delta")]
    assert trls == [entropy.LEAST, entropy.MOST, entropy.STEP]


def test_the_table_has_both_defaults_as_they_are() -> None:
    theirs, ours = of_trl(), Update().model_dump()
    for name, (here, there) in rows().items():
        if name in theirs:
            assert there == str(theirs[name]), name
        if ours.get(name) is not None:
            assert here.split(" ")[0].rstrip(",") == str(ours[name]) or str(ours[name]) in here, name
