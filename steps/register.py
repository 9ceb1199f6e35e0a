"""Register: the best adapter becomes a version of a registered model in MLflow, if it beats the base policy on test.

By the rule it must succeed more often. Where a judge compares the two, the lower end of the interval of the share of
scenarios at which it is judged better must be above 0.5.

The receipt says what was decided and why. It depends on the inputs alone, and DVC versions it. The version itself is stored
in MLflow; an adapter that has one already does not get a second.

Left out: the full gate and the alias `champion`, also of the first version (flows/promote.py), and deleting anything.

    python -m steps.register --adapter run/004/adapter --evaluation run/004/test --base-evaluation run/000/test \\
        --receipt run/receipt.json
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from steps.core.errors import UserError
from steps.core.progress import say
from steps.project import store
from steps.registry.publish import publish, read_test
from steps.runner.stage import Input, Output, main

if TYPE_CHECKING:
    from steps.core.evaluations import Evaluation
    from steps.core.params import RegisterParams


def register(
    adapter: Input, evaluation: Input, base_evaluation: Input, receipt: Output, params: RegisterParams
) -> None:
    """Register the adapter if it is better, and write the receipt. Both evaluations must be of the test split."""
    from steps.policy.adapter import adapter_hash

    trained, base = read_test(evaluation), read_test(base_evaluation)
    name = adapter_hash(adapter)
    if trained.adapter_hash != name:
        raise UserError(
            f"{evaluation} is of adapter {trained.adapter_hash}, and {adapter} is {name}: evaluate it again "
            "(`.venv/bin/dvc repro`)"
        )
    if trained.n != base.n:
        raise UserError(
            f"{evaluation} has {trained.n} scenarios and {base_evaluation} has {base.n}: only the same can be compared, "
            "evaluate both again (`.venv/bin/dvc repro`)"
        )
    better, reason = compare(trained, base)
    if better:
        version = store.patiently(lambda: publish(Path.cwd(), adapter, evaluation, base_evaluation, params))
        say(f"registered: {params.model} version {version}, because {reason}")
    else:
        say(f"not registered: {reason}")
    written: dict[str, object] = {"name": params.model, "adapter_hash": name, "registered": better, "reason": reason}
    for key, summary in (("base", base), ("trained", trained)):
        judged = {"judged"} if summary.judged is not None else set()
        written[key] = summary.model_dump(mode="json", include={"success", "ci95", "clusters", "n", "reward"} | judged)
    receipt.write_text(json.dumps(written, indent=2) + "\n")


def compare(trained: Evaluation, base: Evaluation) -> tuple[bool, str]:
    """(whether the trained policy is better than the base policy, why). UserError where the two cannot be compared."""
    if (trained.judged is None) != (base.judged is None):
        raise UserError(
            "one of the two evaluations has rewards by a rule, and the other was compared by a judge: let the agent return "
            "a reward always, or never, and evaluate both again (`.venv/bin/dvc repro`)"
        )
    if trained.judged is not None:
        if trained.judged.rival_hash != base.adapter_hash:
            raise UserError(
                f"the judge compared the adapter with {trained.judged.rival_hash}, and not with the base policy, "
                f"{base.adapter_hash}: evaluate it again (`.venv/bin/dvc repro`)"
            )
        better = trained.interval[0] > 0.5
        return better, f"on test {trained.sentence()}; the lower end is {'' if better else 'not '}above 0.5"
    better = trained.share > base.share
    how = "above" if better else "not above"
    return (
        better,
        f"test success {trained.share:.3f} is {how} the base policy's {base.share:.3f} ({trained.n} scenarios)",
    )


if __name__ == "__main__":
    main(register, warm=False)
