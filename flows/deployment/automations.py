"""Automations, which Prefect runs by itself: a new challenger starts `evaluate`, and a failed run sends a notification.

Every `make ui` (flows/deploy.py) makes them, or updates those of the same names. Notifications go to FLYWHEEL_NOTIFY_URL, a
webhook that takes {"text": ...}, as Slack's, Mattermost's and many others do. Where it is not set, that automation exists
and is switched off. The address is a secret: a secret field of a Prefect block holds it, and no page shows it.
"""

from __future__ import annotations

import os
from typing import Any

from flows.deployment.pages import CHALLENGER

EVALUATE, NOTIFY = "evaluate every new challenger", "tell of runs that fail"
BLOCK = "flywheel-notify"
FAILED = "{{ flow.name }} / {{ flow_run.name }} is {{ flow_run.state.name }}: {{ flow_run.state.message }}"


def apply() -> None:
    """Make both automations, or bring them up to date. The deployment `evaluate` must exist."""
    from prefect.automations import Automation
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        deployment = client.read_deployment_by_name("evaluate/evaluate").id
        url = os.environ.get("FLYWHEEL_NOTIFY_URL", "").strip()
        webhook = notify(url) if url else None
        for automation in (Automation(**challenger(deployment)), Automation(**failure(webhook))):
            existing = client.read_automations_by_name(automation.name)
            for double in existing[1:]:
                client.delete_automation(double.id)
            if existing:
                automation.id = existing[0].id
                automation.update()
            else:
                automation.create()


def challenger(deployment: Any) -> dict[str, Any]:
    """The automation that runs the deployment `evaluate`, of this id, for each new challenger."""
    from prefect.events.actions import RunDeployment
    from prefect.events.schemas.automations import EventTrigger

    def from_event(label: str) -> dict[str, str]:
        return {"__prefect_kind": "jinja", "template": f"{{{{ event.resource['{label}'] }}}}"}

    settings = {"model": from_event("model"), "version": from_event("version")}
    return {
        "name": EVALUATE,
        "description": "A run registered a new version: it is judged beside champion, base and scripted player.",
        "trigger": EventTrigger(expect={CHALLENGER}, for_each={"prefect.resource.id"}, posture="Reactive", threshold=1),
        "actions": [RunDeployment(deployment_id=deployment, parameters={"settings": settings})],
    }


def failure(block: Any) -> dict[str, Any]:
    """The automation that sends a notification through the block of this id; switched off where it is None."""
    from prefect.events.actions import DoNothing, SendNotification
    from prefect.events.schemas.automations import EventTrigger

    subject = "agent-flywheel: a run failed"
    action = SendNotification(block_document_id=block, subject=subject, body=FAILED) if block else DoNothing()
    return {
        "name": NOTIFY,
        "description": "Sends its text to FLYWHEEL_NOTIFY_URL. Off: that was not set when `make ui` started.",
        "enabled": block is not None,
        "trigger": EventTrigger(
            expect={"prefect.flow-run.Failed", "prefect.flow-run.Crashed"},
            match={"prefect.resource.id": "prefect.flow-run.*"},
            for_each={"prefect.resource.id"},
            posture="Reactive",
            threshold=1,
        ),
        "actions": [action],
    }


def notify(url: str) -> Any:
    """Make the block that sends to the webhook; its id."""
    from prefect.blocks.notifications import CustomWebhookNotificationBlock

    text = {"text": "{{subject}}\n{{body}}"}
    block = CustomWebhookNotificationBlock(name=BLOCK, url="{{hook}}", json_data=text, secrets={"hook": url})
    return block.save(BLOCK, overwrite=True)
