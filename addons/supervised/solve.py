"""Whether a scenario that a model wrote can be solved: by the task's scripted player, or by a strong model with its tools.

A task that defines `accept` has checked that itself. Otherwise, where it has a rule, its scripted player must succeed, or
else the model where there is one. Without a rule nobody can tell success: the model must end in words of its own, after at
least one call that was answered without an error. What cannot be checked is not refused, and the report says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from environments.base import Env, Scenario, is_error, tool_calls
from steps.judging.rule import succeeds

if TYPE_CHECKING:
    from addons.models.section import Endpoint


class Solver:
    """Says of scenarios why they cannot be solved, and by whom that was tried (`how`)."""

    def __init__(self, env: type[Env], data: Any, endpoint: Endpoint | None) -> None:
        self.env, self.data, self.endpoint = env, data, endpoint
        own = env.accept.__func__ is not Env.accept.__func__
        self.by_script = env.has_rule and not own and env.has_player("scripted")
        tried = ["checked by the scripted player"] * self.by_script
        if endpoint is not None:
            tried.append(
                f"{'and where it fails ' if tried else ''}by {endpoint.model}, which played with the task's tools"
            )
        if not env.has_rule and endpoint is not None:
            tried.append("and came to an answer; no rule says whether it is right")
        unchecked = "not checked" if env.is_agent else "not checked: name a model with --solver"
        if env.has_rule and not env.is_agent and not own:
            unchecked += f"; {env.lacks('scripted')}"
        has_checked = env.has_rule and not env.is_agent and own
        self.how = ", ".join(tried) or ("checked by the task's own `accept`" if has_checked else unchecked)

    def __call__(self, scenarios: Sequence[Scenario]) -> dict[str, str]:
        """Why a scenario was not solved, by its id; solved ones, and those that nobody could try, are not in it."""
        unsolved = dict(self._by_script(scenarios)) if self.by_script else {}
        if self.endpoint is None or not scenarios:
            return unsolved
        open_ones = [scenario for scenario in scenarios if scenario.id in unsolved or not self.by_script]
        return self._by_model(open_ones) if open_ones else {}

    def _by_script(self, scenarios: Sequence[Scenario]) -> dict[str, str]:
        unsolved = {}
        for scenario in scenarios:
            try:
                if not succeeds(self.env, scenario, self.env(scenario, self.data).play("scripted")):
                    unsolved[scenario.id] = "the scripted player does not solve it"
            except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as problem:
                unsolved[scenario.id] = f"the task cannot be played with it: {type(problem).__name__}"
        return unsolved

    def _by_model(self, scenarios: Sequence[Scenario]) -> dict[str, str]:
        from addons.models import players

        assert self.endpoint is not None
        policy = players.on_server(self.endpoint)
        played = players.play(policy, self.env, self.data, [(scenario, 0) for scenario in scenarios], prefix="solve")
        unsolved = {}
        for scenario, game in zip(scenarios, played, strict=True):
            messages = game.trajectory.messages(scenario)
            if game.trajectory.stop_reason == "error":
                unsolved[scenario.id] = f"{self.endpoint.model} could not play it: {game.trajectory.error}"
            elif self.env.has_rule:
                if not succeeds(self.env, scenario, messages):
                    unsolved[scenario.id] = f"{self.endpoint.model} does not solve it"
            elif game.trajectory.stop_reason != "done":
                unsolved[scenario.id] = f"{self.endpoint.model} comes to no end"
            elif all(is_error(observation) for _, _, observation in tool_calls(messages)):
                unsolved[scenario.id] = f"{self.endpoint.model} answers without a call that succeeds"
        return unsolved
