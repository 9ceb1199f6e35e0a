"""What the stage wants played, and the chats of its policy."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from addons.agents.gateway.types import TOO_LONG, BadRequest, Request
from addons.agents.section import Grammar
from steps.core.params import Policy
from steps.policy.chat import Chat
from steps.policy.loading import blind, load_tokenizer, load_vision

LARGEST = 32 * 2**20  # bytes of a request's body
KEPT = 2**22  # letters of lists of tools whose chats are kept


class Plan(NamedTuple):
    """What the stage wants played; it travels as JSON."""

    journal: str  # path
    task: str
    policy: dict[str, Any]
    agents: dict[str, Any]
    adapter: str  # content hash
    order: str
    grammar: Grammar
    seed: int
    temperature: float
    max_tokens: int
    max_turns: int | None
    episodes: list[dict[str, Any]]  # {"episode", "scenario", "attempt"}, in the order in which they are begun


class Chats:
    """The chats of a policy, one for each list of tools."""

    def __init__(self, policy: Policy) -> None:
        self.policy, self.tokenizer = policy, load_tokenizer(policy)
        self.vision, self.blind = load_vision(policy), blind(policy)
        self.chats: dict[str, Chat] = {}
        longest = max(map(len, self.tokenizer.get_vocab()), default=1)
        self.most_text = policy.context * longest  # letters; a longer text has more tokens than policy.context
        self.most_body = LARGEST  # bytes of a request that may fit; JSON may write a letter with six
        if self.vision is None:
            self.most_body = min(LARGEST, 2**20 + 6 * self.most_text)

    def of(self, tools: Sequence[dict[str, Any]]) -> Chat:
        """BadRequest where the policy's template cannot show these tools."""
        name = json.dumps(tools, sort_keys=True)
        if name not in self.chats:
            while sum(map(len, self.chats)) > KEPT:
                del self.chats[next(iter(self.chats))]
            policy = self.policy
            options, parsers = policy.chat_template_kwargs, (policy.tool_parser, policy.reasoning_parser)
            try:
                self.chats[name] = Chat(self.tokenizer, tools, options, *parsers, self.vision, self.blind)
            except ValueError as problem:
                reason = f"the policy cannot use these tools, because {problem}"
                raise BadRequest(reason, "tools") from None
        return self.chats[name]

    def length(self, request: Request) -> int:
        """Letters of a prompt that its tokens must hold: texts, calls and tools, without reasoning, which templates leave
        out. For a prompt of token ids, their number. BadRequest where they are more than fit into policy.context."""
        texts: list[Any] = [message.get("content") or "" for message in request.messages]
        structures = [*(message.get("tool_calls") or () for message in request.messages), request.tools]
        texts += [json.dumps(each, ensure_ascii=False) for each in structures if each]
        size, context = sum(map(len, texts)) + len(request.prompt or ""), self.policy.context
        most, unit = (context, "ids") if isinstance(request.prompt, tuple) else (self.most_text, "letters")
        if size > most:
            reason = f"policy.context is {context} tokens, which at most {most} {unit} fit into: the prompt has {size}"
            raise BadRequest(reason, "messages", TOO_LONG)
        return size
