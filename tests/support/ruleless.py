"""A task without a rule: products whose answers nobody checks, for tests of what a judge decides alone."""

from __future__ import annotations

from environments.multiplication import Multiplication


class Ruleless(Multiplication):
    """One product; nothing tells a right answer from a wrong one."""

    has_rule = False
