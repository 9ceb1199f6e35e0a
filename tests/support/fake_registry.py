"""A registered model in memory, which stands for MLflow's registry, and kills at a chosen moment."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from steps.registry.model import RegisteredModel


class Killed(BaseException):
    """Stands for SIGKILL: nothing in the product catches it."""


class FakeRegistry:
    """Tags and aliases of three versions of the model `toy`. The write numbered `fatal` kills, before or after it."""

    def __init__(self, **aliases: str) -> None:
        self.aliases = aliases
        self.versions = {number: version(number) for number in ("1", "2", "3")}
        self.made, self.fatal, self.is_after = 0, 0, False
        self.meanwhile: Any = lambda: None  # called in the middle of each write

    def write(self, change: Any) -> None:
        self.made += 1
        if self.made == self.fatal and not self.is_after:
            raise Killed
        self.meanwhile()
        change()
        if self.made == self.fatal:
            raise Killed

    def set_model_version_tag(self, _: str, number: str, tag: str, value: str) -> None:
        self.write(lambda: self.versions[number].tags.update({tag: value}))

    def set_registered_model_alias(self, _: str, alias: str, number: str) -> None:
        self.write(lambda: self.aliases.update({alias: number}))

    def delete_registered_model_alias(self, _: str, alias: str) -> None:
        self.write(lambda: self.aliases.pop(alias, None))

    def get_registered_model(self, _: str) -> Any:
        return SimpleNamespace(aliases=dict(self.aliases))

    @property
    def model(self) -> RegisteredModel:
        """The model as it is now."""
        versions = {number: version(number, **entry.tags) for number, entry in self.versions.items()}
        return RegisteredModel(self, "toy", versions, dict(self.aliases))


def version(number: str, **tags: str) -> Any:
    return SimpleNamespace(version=number, tags={"adapter_hash": f"adapter {number}"} | tags)
