"""What the doctor looks at where policies are served and conversations are kept, and how a person goes on after a run."""

from __future__ import annotations

from flows.diagnosis.findings import Parts, Service

PARTS = Parts(
    services={"serve": Service(("vllm.", "addons.production.serve"), 8000, "SERVE_PORT", "serve")},
    servers=("addons.production.serve",),
    made={
        "ingested": "[a-z][a-z0-9_]*",
        ".flywheel/served": "[0-9a-f]{16}",
        ".flywheel/forgotten": "key|tombstones|intended",
    },
    words=("ingested", ".flywheel/capture", ".flywheel/forgotten"),
)
NEXT = {
    "make ask{scenario}": 'play it again with both policies; Q="…" asks your own',
    "make serve": "serve the champion",
}
