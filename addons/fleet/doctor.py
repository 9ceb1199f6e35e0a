"""What the doctor looks at where other machines sample."""

from __future__ import annotations

from flows.diagnosis.findings import Parts

PARTS = Parts(servers=("addons.fleet.vllm_server",))
