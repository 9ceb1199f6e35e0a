"""The schedules of the deployment `train`: `nightly` is made once, and what people set stays."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.schedules import CronSchedule

from flows.deploy import tidy_schedules


class FakeClient:
    """A server with one deployment and its schedules."""

    def __init__(self) -> None:
        self.schedules: list[Any] = []

    def read_deployment_by_name(self, name: str) -> Any:
        assert name == "train/train"
        return SimpleNamespace(id="train", schedules=list(self.schedules))

    def create_deployment_schedules(self, deployment: str, schedules: list[DeploymentScheduleCreate]) -> None:
        for schedule in schedules:
            self.add(schedule.schedule, schedule.active, schedule.slug, **schedule.parameters)

    def delete_deployment_schedule(self, deployment: str, schedule: int) -> None:
        self.schedules = [entry for entry in self.schedules if entry.id != schedule]

    def add(self, schedule: Any, active: bool = True, slug: str | None = None, **parameters: Any) -> None:
        number = 1 + max((entry.id for entry in self.schedules), default=0)
        values = {"schedule": schedule, "active": active, "slug": slug, "parameters": parameters}
        self.schedules.append(SimpleNamespace(id=number, **values))

    def shown(self) -> list[tuple[str, bool, str | None]]:
        return [(entry.schedule.cron, entry.active, entry.slug) for entry in self.schedules]


@pytest.fixture
def client() -> FakeClient:
    return FakeClient()


def tidy(client: FakeClient) -> None:
    tidy_schedules(cast(SyncPrefectClient, client), "train/train", "0 2 * * *")


def test_nightly_is_made_once_and_is_off(client: FakeClient) -> None:
    for _ in range(3):
        tidy(client)
    assert client.shown() == [("0 2 * * *", False, "nightly")]


def test_what_people_set_stays(client: FakeClient) -> None:
    tidy(client)
    client.schedules[0].active = True
    client.add(CronSchedule(cron="0 6 * * 1"))
    client.add(CronSchedule(cron="0 6 * * 1"), settings={"task": "tic_tac_toe"})
    before = client.shown()
    tidy(client)
    assert client.shown() == before


def test_doubles_are_removed_and_the_one_that_is_on_stays(client: FakeClient) -> None:
    """As `prefect deployment schedule create train/train --cron "0 2 * * *"` leaves them, given twice."""
    tidy(client)
    client.add(CronSchedule(cron="0 2 * * *"))
    client.add(CronSchedule(cron="0 2 * * *"))
    tidy(client)
    assert client.shown() == [("0 2 * * *", True, None)]
    tidy(client)
    assert client.shown() == [("0 2 * * *", True, None)], "nightly comes back only where there is no schedule"
