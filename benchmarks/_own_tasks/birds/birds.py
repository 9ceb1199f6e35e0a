"""A bird guide's glossary: what a bird is called in German or French, by way of its scientific name."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, Literal

from environments import base
from environments.base import Env, Message, Scenario, Split, tool, use, words

RULES = (
    "Find the scientific name first, then the name in the other language. Answer in plain words with that name alone."
)
ASK = {
    "German": [
        "What do Germans call the {bird}?",
        "The {bird}: what's its German name?",
        "How do I say {bird} in German?",
        "German for {bird}, please.",
    ],
    "French": [
        "What do the French call the {bird}?",
        "The {bird}: what's its French name?",
        "How do I say {bird} in French?",
        "French for {bird}, please.",
    ],
}


class Birds(Env):
    """One bird, one language."""

    max_turns = 5
    sources = ("bird",)
    openings_repeat = True
    shown = ("other_name",)

    @classmethod
    def load(cls, folder: Path) -> list[dict[str, str]]:
        birds: list[dict[str, str]] = json.loads(base.read_text(folder / "birds.json"))
        return birds

    @classmethod
    def scenarios(cls, data: list[dict[str, str]], split: Split, count: int, seed: int) -> list[Scenario]:
        chosen = []
        for bird in data:
            if base.split_of(bird["latin"], {"train": 0.47, "val": 0.23, "test": 0.3}) == split:
                chosen += [(bird, "German"), (bird, "French")]
        if count > len(chosen):
            raise ValueError(f"only {len(chosen)} names can be asked for in {split}")
        rng = Random(f"{split}-{seed}")
        result = []
        for bird, language in rng.sample(chosen, count):
            question = rng.choice(ASK[language]).format(bird=bird["english"])
            messages: list[Message] = [{"role": "system", "content": RULES}, {"role": "user", "content": question}]
            hidden: dict[str, Any] = {"bird": bird["english"], "answer": bird[language.lower()], "kind": language}
            result.append(Scenario.make("birds", split, messages, hidden))
        return result

    @tool
    def scientific_name(self, bird: str) -> str:
        """The scientific name of a bird.

        Args:
            bird: its English name
        """
        for entry in self.data:
            if entry["english"] == bird.lower():
                return str(entry["latin"])
        return base.error("no bird of this name is in the guide")

    @tool
    def other_name(self, scientific: str, language: Literal["German", "French"]) -> str:
        """The name of a bird in another language.

        Args:
            scientific: the scientific name
            language: the other language
        """
        for entry in self.data:
            if entry["latin"] == scientific:
                return str(entry[language.lower()])
        return base.error("the guide has no such scientific name")

    def hear(self, text: str) -> list[Message]:
        self.done = True
        return []

    @classmethod
    def success(cls, scenario: Scenario, messages: Sequence[Message]) -> bool:
        """The answer must hold the name, and may be a short sentence."""
        last = messages[-1]
        if last["role"] != "assistant" or last.get("tool_calls"):
            return False
        spoken = base.normalise(str(last["content"]))
        return f" {base.normalise(scenario.data['answer'])} " in f" {spoken} " and len(spoken.split()) <= 12

    def scripted(self, messages: Sequence[Message], rng: Random) -> Message:
        question = str(messages[1]["content"])
        calls = base.count_calls(messages)
        if calls == 0:
            [bird] = re.findall(r"(?:the|The|say|for) ([a-z -]+?)(?: in German| in French|[?:,])", question)
            return use("scientific_name", bird=bird)
        if calls == 1:
            language = "German" if "German" in question else "French"
            return use("other_name", scientific=str(messages[-1]["content"]), language=language)
        return words(str(messages[-1]["content"]))
