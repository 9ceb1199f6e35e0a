"""Sft: supervised training of the adapter on demonstrations, before the first iteration (docs/start.md).

The flow has collected the demonstrations into start/demonstrations.jsonl, which DVC versions: the user's files, and the
good trajectories of earlier runs. Training goes on from the base policy's fresh adapter, or from that of the stage start.
The result is what iteration 001 continues, and with update.reference: start what its KL divergence is from. Lines that
cannot be learnt from are counted by their reasons in metrics.json.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from steps.core.errors import UserError
from steps.core.progress import say
from steps.core.section import at
from steps.core.stats import added
from steps.runner.stage import Input, Output, main

if TYPE_CHECKING:
    from addons.supervised.params import SftParams


def sft(
    task_data: Input,
    demonstrations: Input,
    previous: Input,
    adapter: Output,
    checkpoint: Output,
    successes: Output,
    judge: Output,
    metrics: Output,
    params: SftParams,
) -> None:
    """Train from the `previous` checkpoint; write adapter, a checkpoint without optimiser steps, a history without
    iterations, and what was measured. UserError where no demonstration can be learnt from."""
    import json
    from collections import Counter

    import environments
    from addons.supervised import chats
    from addons.supervised.fine_tuning import divided, fine_tune
    from addons.supervised.variations import variations
    from steps.core.records import Row
    from steps.policy.chat import Chat
    from steps.policy.loading import load_chat
    from steps.policy.machine import prepare_training
    from steps.training import grpo

    settings = params.sft
    assert settings is not None  # SftParams checks it
    env, policy = environments.load(params.task), params.policy
    env.load(task_data)
    chat = load_chat(policy, env)
    read, left_out = chats.read_demonstrations(demonstrations)
    own: dict[str, Chat] = {chats.key(None): chat}
    for tools in (item.tools for item in read if item.tools is not None):
        if (name := chats.key(tools)) not in own:
            own[name] = Chat(
                chat.tokenizer, tools, policy.chat_template_kwargs, policy.tool_parser, policy.reasoning_parser
            )
    unusable = Counter({reason: len(lines) for reason, lines in left_out.items()})
    ignored = Counter(name for item in read for name in item.ignored)

    def rows_of(chosen: list[chats.Demonstration]) -> tuple[list[Row], list[Row]]:
        """The rows of demonstrations, and those of their variations. What has none is counted."""
        varied = variations(chosen, chat.tools, settings.copies(len(read)), params.seed)
        (own_tokens, refused), (more, _) = (chats.tokens_of(each, own, policy.context) for each in (chosen, varied))
        unusable.update(refused)
        own_rows, more_rows = ([Row(ids, mask, [0.0] * len(ids)) for ids, mask in each] for each in (own_tokens, more))
        return own_rows, more_rows

    # A variation of what is held out is held out, too: what was learnt would be asked again otherwise.
    (rows, varied), (held_out, alike) = map(rows_of, divided(read, settings, params.seed))
    counts = dict(sorted(unusable.items()))
    for reason, count in counts.items():
        say(f"{count} demonstrations left out: {reason}")
    for name, count in sorted(ignored.items()):
        say(f"{count} demonstrations have a field that nothing reads: {name}")
    if not rows:
        raise UserError(f"{demonstrations} holds no demonstration to learn from: {counts or 'it is empty'}")
    prepare_training(policy.threads, at(policy, "deterministic"))
    trainer = grpo.Trainer(policy, checkpoint=previous)
    learnt = [*rows, *varied]
    losses = fine_tune(trainer, learnt, settings, chat.tokenizer, params.seed, [*held_out, *alike])
    name = trainer.save_adapter(adapter)
    trainer.start = adapter
    trainer.save_checkpoint(checkpoint, name)
    successes.write_text("[]\n")
    judge.write_text('{"cost_so_far": 0.0}\n')
    tenth = max(1, len(losses) // 10)
    measured = {
        "demonstrations": len(read) + sum(map(len, left_out.values())),
        "trained": len(rows),
        "held_out": len(held_out),
        "variations": len(varied),
        "left_out": counts,
        "ignored": dict(sorted(ignored.items())),
        "tokens": sum(sum(row.mask) for row in learnt),
        "optimizer_steps": len(losses),
        "loss_first": added(losses[:tenth]) / tenth,  # nats per token, over the first tenth of the steps
        "loss_last": added(losses[-tenth:]) / tenth,
    }
    metrics.write_text(json.dumps(measured, indent=2) + "\n")
    amount = f"{len(rows)} demonstrations and {len(varied)} variations of them"
    say(f"{amount}, loss {measured['loss_first']:.3f} to {measured['loss_last']:.3f} nats per token")


if __name__ == "__main__":
    main(sft)
