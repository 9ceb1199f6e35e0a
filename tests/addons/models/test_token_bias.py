"""The one-token baseline: which tokens are tried, and which bias is chosen."""

from __future__ import annotations

from addons.models.token_bias import CANDIDATES, FIRST, SIZES, Bias, best_bias, candidates
from steps.core.records import Trajectory, Turn


def trajectory(*turns: tuple[int, ...]) -> Trajectory:
    message = {"role": "assistant", "content": ""}
    shared = {"prompt_ids": (), "logprobs": (), "message": message, "observations": (), "finish_reason": "stop"}
    made = tuple(Turn.model_validate({"completion_ids": ids} | shared) for ids in turns)
    return Trajectory(id="t", scenario_id="s", attempt=0, adapter_hash="a", turns=made, stop_reason="done")


def test_the_most_frequent_tokens_are_tried() -> None:
    assert candidates([trajectory((7, 7, 5), (9,)), trajectory((9, 7, 3))]) == [7, 9, 3, 5]
    assert len(candidates([trajectory(tuple(range(100)))])) == CANDIDATES


def test_the_best_bias_is_found_in_two_rounds() -> None:
    tried = []

    def success(bias: Bias) -> float:
        tried.append(bias)
        return {Bias(5, -0.5): 0.6, Bias(5, -1.0): 0.8, Bias(9, 2.0): 1.0}.get(bias, 0.3)

    assert best_bias([9, 5, 7], success) == Bias(5, -1.0), "the sizes beyond the first two only for the best token"
    assert len(tried) == 3 * len(FIRST) + len(SIZES) - len(FIRST) == len(set(tried))


def test_among_equals_the_first_tried() -> None:
    assert best_bias([4, 2], lambda _: 0.5) == Bias(4, FIRST[0])
    assert Bias(4, -0.5).logits == {4: -0.5}
