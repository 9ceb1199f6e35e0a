"""Deploy: makes the work pool, the deployments of prefect.yaml, the automations, and the limit of runs at a time.

    python -m flows.deploy                 # on the server that PREFECT_API_URL names; `make ui` calls it
    python -m flows.deploy --pool gpu --type docker --image registry.example/agent-flywheel:gpu --runs 4

All deployments run in one pool; the same command with another pool moves them. Workers of it take them up
(`prefect worker start --pool gpu`). What a container needs to know is taken from the variables that are set here
(flows/deployment/pools.py); docs/team.md lists them.

Prefect runs two automations by itself: a new challenger starts `evaluate`, and a failed run sends a notification. That goes
to FLYWHEEL_NOTIFY_URL, a webhook that takes {"text": ...}, as Slack's, Mattermost's and many others do. Where it is not set,
the automation exists and is switched off. The address is a secret: a secret field of a Prefect block holds it, and no page
shows it. What exists already is brought up to date, by its name. Schedules stay as people set them: where `train` or
`flywheel` has none, `nightly` is made, switched off; of two that start the same run at the same times one stays.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.deployment import pools
from flows.deployment.artifacts import CHALLENGER
from flows.deployment.workspace import POOL
from steps.core import dotenv
from steps.core.errors import UserError
from steps.core.terminal import command_parser, exit_code
from steps.core.yaml_text import read_mapping

if TYPE_CHECKING:
    from prefect.automations import Automation
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import DeploymentSchedule

SCHEDULES = {"train/train": "0 2 * * *", "flywheel/flywheel": "0 3 * * *"}  # of each deployment: its `nightly`, in UTC
BLOCK = "flywheel-notify"
FAILED = "{{ flow.name }} / {{ flow_run.name }} is {{ flow_run.state.name }}: {{ flow_run.state.message }}"


def deploy(runs: int = 1, pool: str = POOL, kind: str = "process", image: str | None = None) -> None:
    """Make them, or bring those that exist up to date. `runs` train in the pool at a time."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        pools.set_up(client, Path.cwd(), pool, kind, image, runs)
        # Prefect resolves what prefect.yaml names: the pool now, and the root now if it is set, else in the run.
        names = {"FLYWHEEL_POOL": pool} | ({"FLYWHEEL_ROOT": pools.HOME} if kind != "process" else {})
        chosen = [word for name in deployments(Path.cwd()) for word in ("--name", name)]
        command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", *chosen]
        process = subprocess.run(command, capture_output=True, text=True, env=os.environ | names)
        if process.returncode:
            output = " ".join((process.stderr or process.stdout).split())
            raise UserError(f"`prefect deploy` failed: {output[-600:]}")
        for name, times in SCHEDULES.items():
            if name.partition("/")[2] in chosen:
                tidy_schedules(client, name, times)
        deployment = client.read_deployment_by_name("evaluate/evaluate").id
        url = os.environ.get("FLYWHEEL_NOTIFY_URL", "").strip()
        for automation in (evaluation(deployment), notification(url)):
            existing = client.read_automations_by_name(automation.name)
            for double in existing[1:]:
                client.delete_automation(double.id)
            if existing:
                automation.id = existing[0].id
                automation.update()
            else:
                automation.create()


def deployments(root: Path) -> list[str]:
    """The names of the deployments in prefect.yaml whose flow is there: an add-on's is not where its folder was deleted."""
    content = read_mapping((root / "prefect.yaml").read_text(encoding="utf-8"), "prefect.yaml")
    flows = {each["name"]: each["entrypoint"].partition(":")[0] for each in content["deployments"]}
    return [name for name, path in flows.items() if (root / path).is_file()]


def tidy_schedules(client: SyncPrefectClient, name: str, times: str) -> None:
    """Make a deployment's schedule `nightly` if it has no schedule, and remove doubles of those it has."""
    from prefect.client.schemas.actions import DeploymentScheduleCreate
    from prefect.client.schemas.schedules import CronSchedule

    deployment = client.read_deployment_by_name(name)
    kept = set[str]()
    for schedule in sorted(deployment.schedules, key=lambda each: not each.active):  # of two, the one that is on stays
        if (content := content_of(schedule)) in kept:
            client.delete_deployment_schedule(deployment.id, schedule.id)
        kept.add(content)
    if not kept:
        nightly = CronSchedule(cron=times, timezone="UTC")
        client.create_deployment_schedules(
            deployment.id, [DeploymentScheduleCreate(schedule=nightly, active=False, slug="nightly")]
        )


def content_of(schedule: DeploymentSchedule) -> str:
    """When a schedule starts which run, as a text that is the same for two that do the same."""
    times = schedule.schedule.model_dump(mode="json")
    times["timezone"] = times.get("timezone") or "UTC"
    return json.dumps([times, schedule.parameters], sort_keys=True)


def evaluation(deployment: Any) -> Automation:
    """The automation that runs the deployment `evaluate`, of this id, for each new challenger."""
    from prefect.automations import Automation
    from prefect.events.actions import RunDeployment
    from prefect.events.schemas.automations import EventTrigger

    def from_event(label: str) -> dict[str, str]:
        return {"__prefect_kind": "jinja", "template": f"{{{{ event.resource['{label}'] }}}}"}

    settings = {"model": from_event("model"), "version": from_event("version")}
    return Automation(
        name="evaluate every new challenger",
        description="A run registered a new version: it is judged beside champion, base and scripted player.",
        trigger=EventTrigger(expect={CHALLENGER}, for_each={"prefect.resource.id"}, posture="Reactive", threshold=1),
        actions=[RunDeployment(deployment_id=deployment, parameters={"settings": settings})],
    )


def notification(url: str) -> Automation:
    """The automation that sends a notification to this webhook; switched off where it is empty."""
    from prefect.automations import Automation
    from prefect.blocks.notifications import CustomWebhookNotificationBlock
    from prefect.events.actions import DoNothing, SendNotification
    from prefect.events.schemas.automations import EventTrigger

    action: DoNothing | SendNotification = DoNothing()
    if url:
        text = {"text": "{{subject}}\n{{body}}"}
        block = CustomWebhookNotificationBlock(name=BLOCK, url="{{hook}}", json_data=text, secrets={"hook": url})
        block_id = block.save(BLOCK, overwrite=True)
        action = SendNotification(block_document_id=block_id, subject="agent-flywheel: a run failed", body=FAILED)
    failures = {"prefect.flow-run.Failed", "prefect.flow-run.Crashed"}
    every_run, resource = {"prefect.resource.id": "prefect.flow-run.*"}, {"prefect.resource.id"}
    return Automation(
        name="tell of runs that fail",
        description="Sends its text to FLYWHEEL_NOTIFY_URL. Off: that was not set when `make ui` started.",
        enabled=bool(url),
        trigger=EventTrigger(expect=failures, match=every_run, for_each=resource, posture="Reactive", threshold=1),
        actions=[action],
    )


def main(words: list[str] | None = None) -> int:
    parser = command_parser("flows.deploy", __doc__)
    parser.add_argument(
        "--runs",
        type=int,
        default=1,
        help="runs at a time, each with GPUs of its own, where there are any (default: 1)",
    )
    parser.add_argument("--pool", default=POOL, metavar="NAME", help=f"work pool of the deployments (default: {POOL})")
    parser.add_argument("--type", choices=pools.TYPES, default="process", help="of the pool (default: process)")
    parser.add_argument("--image", metavar="NAME:TAG", help="of the containers, with --type docker and kubernetes")
    options = parser.parse_args(words)
    if options.runs < 1:
        parser.error(f"--runs {options.runs}: at least one run must be able to train")

    def work() -> None:
        dotenv.load(Path.cwd())
        deploy(options.runs, options.pool, options.type, options.image)

    return exit_code(work)


if __name__ == "__main__":
    sys.exit(main())
