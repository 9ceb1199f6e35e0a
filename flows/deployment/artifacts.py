"""What flows show in Prefect's pages.

Nothing is made without a server that keeps it (PREFECT_API_URL). A failing artifact ends no run, and after one that
took longer than PATIENCE no more are made.
"""

from __future__ import annotations

import base64
import functools
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec
from uuid import UUID

from flows.terminal.command import TakesTooLong, limit
from steps.core.masking import masked

PATIENCE = 20.0  # seconds for an artifact
HANGS = threading.Event()  # set once an artifact has taken longer
CHALLENGER = "flywheel.challenger.new"  # the Prefect event for a new version


Words = ParamSpec("Words")


def shown(make: Callable[Words, None]) -> Callable[Words, None]:
    """Call `make` only where a server keeps the flow run. Its error becomes a warning in the flow run's log."""

    @functools.wraps(make)
    def guarded(*words: Words.args, **options: Words.kwargs) -> None:
        if os.environ.get("PREFECT_API_URL") and not HANGS.is_set():
            try:
                with limit(PATIENCE):
                    make(*words, **options)
            except (Exception, TakesTooLong) as problem:
                if isinstance(problem, TakesTooLong):
                    HANGS.set()
                logger = logging.getLogger("prefect.flow_runs")
                logger.warning("an artifact of this run was not kept: %s", masked(str(problem)))

    return guarded


@shown
def rename(name: str) -> None:
    """Give the flow run the name of the run that it makes, which may have been chosen in the form."""
    from prefect.client.orchestration import get_client
    from prefect.runtime import flow_run

    if flow_run.id and flow_run.name != name:
        with get_client(sync_client=True) as client:
            client.update_flow_run(UUID(flow_run.id), name=name)


def show_picture(png: Path, key: str, description: str) -> None:
    """Show a picture."""
    from prefect.artifacts import create_image_artifact

    encoded = base64.b64encode(png.read_bytes()).decode()
    create_image_artifact(f"data:image/png;base64,{encoded}", key=key, description=description)


@shown
def challenger(name: str, version: str) -> None:
    """Tell Prefect of a new version in the registry: an automation (flows/deploy.py) starts `evaluate`."""
    from prefect.events import emit_event

    resource = {"prefect.resource.id": f"flywheel.model.{name}.{version}", "model": name, "version": str(version)}
    emit_event(CHALLENGER, resource=resource)
