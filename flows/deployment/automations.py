"""Automations: what Prefect does by itself. A new challenger starts `evaluate`; a run that fails or crashes notifies.

They are made again by every `make ui` (flows/deploy.py), found by their names. Notifications go to FLYWHEEL_NOTIFY_URL, a
webhook that takes {"text": ...} as Slack's, Mattermost's and many others do; where it is not set that automation is there,
switched off. The address is a secret: it stands in a secret field of a block of Prefect's, and in no page.
"""

from __future__ import annotations

import os
from typing import Any

from flows.deployment.pages import CHALLENGER

EVALUATE, NOTIFY = "evaluate every new challenger", "tell of runs that fail"
BLOCK = "flywheel-notify"
FAILED = "{{ flow.name }} / {{ flow_run.name }} is {{ flow_run.state.name }}: {{ flow_run.state.message }}"


def apply() -> None:
    """Make both, or bring them up to date. The deployment `evaluate` must be there."""
    from prefect.automations import Automation
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        deployment = client.read_deployment_by_name("evaluate/evaluate").id
        url = os.environ.get("FLYWHEEL_NOTIFY_URL", "").strip()
        for wanted in (Automation(**challenger(deployment)), Automation(**failure(notify(url) if url else None))):
            found = client.read_automations_by_name(wanted.name)
            for other in found[1:]:
                client.delete_automation(other.id)
            if found:
                wanted.id = found[0].id
                wanted.update()
            else:
                wanted.create()


def challenger(deployment: Any) -> dict[str, Any]:
    from prefect.events.actions import RunDeployment
    from prefect.events.schemas.automations import EventTrigger

    def told(label: str) -> dict[str, str]:
        return {"__prefect_kind": "jinja", "template": f"{{{{ event.resource['{label}'] }}}}"}

    settings = {"model": told("model"), "version": told("version")}
    return {
        "name": EVALUATE,
        "description": "A run registered a new version: it is judged beside champion, base and scripted player.",
        "trigger": EventTrigger(expect={CHALLENGER}, for_each={"prefect.resource.id"}, posture="Reactive", threshold=1),
        "actions": [RunDeployment(deployment_id=deployment, parameters={"settings": settings})],
    }


def failure(block: Any) -> dict[str, Any]:
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
    """The id of the block that sends to the webhook."""
    from prefect.blocks.notifications import CustomWebhookNotificationBlock

    text = {"text": "{{subject}}\n{{body}}"}
    block = CustomWebhookNotificationBlock(name=BLOCK, url="{{hook}}", json_data=text, secrets={"hook": url})
    return block.save(BLOCK, overwrite=True)
