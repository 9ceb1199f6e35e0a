"""What a person's key may do on MLflow's server. What changes something is refused unless it is listed here, because MLflow
gets new paths with every version. The key of .flywheel/mlflow.key opens all of it.

Everybody may train, and register challengers: runs, logged models, traces, versions, the alias `challenger`. Promoters may
also move other aliases, tag, rename and delete. Webhooks, MLflow's gateway with its keys, jobs, scorers and prompts are the
owner's alone. So is where artifacts lie, because the server reads files there for whoever asks: an experiment gets the
server's own folder, and a version is made of a logged model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

LONGEST = 2**20  # bytes of a body that is looked at
# By the method: what follows /api/2.0/mlflow/ (or 3.0, or ajax-api), where * is one name. Another spelling is none of these.
EVERYBODY = {
    "POST": """experiments/search experiments/search-datasets runs/search logged-models/search traces/search datasets/search
        traces/batchGetInfos traces/calculate-filter-correlation traces/metrics registered-models/get-latest-versions
        experiments/create experiments/set-experiment-tag
        runs/create runs/update runs/delete runs/log-metric runs/log-parameter runs/log-batch runs/log-model runs/log-inputs
        runs/outputs runs/set-tag runs/delete-tag
        logged-models logged-models/*/params traces traces/link-to-run traces/*/assessments
        registered-models/create registered-models/alias model-versions/create""",
    "PATCH": "logged-models/* logged-models/*/tags traces/* traces/*/tags",
}
PROMOTERS = {
    "POST": """experiments/update experiments/delete experiments/restore experiments/delete-experiment-tag runs/restore
        traces/delete-traces registered-models/rename registered-models/set-tag
        model-versions/set-tag model-versions/transition-stage""",
    "PATCH": "registered-models/update model-versions/update",
    "DELETE": """registered-models/delete registered-models/delete-tag registered-models/alias
        model-versions/delete model-versions/delete-tag logged-models/* logged-models/*/tags/*""",
}
API = r"/(?:ajax-)?api/[23]\.0/mlflow/(?:{})"
ALIAS = {"name", "alias", "version"}
NOT_PROMOTER = (
    "Only promoters may do this: ask whoever runs the server for `.venv/bin/python -m flows.deployment.people add NAME "
    "--promoter`."
)
# Read by GET is all but this: what holds keys, or asks another server.
CLOSED = re.compile(
    r"/(gateway|gateway-proxy|webhooks|mlflow-artifacts|presigned[^/]*|graphql|jobs|mcp-servers)(/|$)", re.I
)
DECIDED = {
    *("promoted", "verdict", "verdict_run", "withdrawn", "restored", "rolled_back"),
    *("canary_since", "canary_looks", "rollback_looks"),
}  # tags of a version that only a decision sets
LOGGED = re.compile(r"models:/m-[0-9a-f]{32}")
LOCATED = re.compile(r"artifact_?-?(location|uri|root)", re.I)


def is_listed(table: dict[str, str], method: str, path: str) -> bool:
    """Whether a table lists this request."""
    listed = "|".join(table.get(method, "").split()).replace("*", "[^/]+")
    return re.fullmatch(API.format(listed or "(?!)"), path) is not None


def may(method: str, path: str, is_promoter: bool) -> bool:
    """Whether a person's request of this kind may be answered, whatever its body says."""
    if method in ("GET", "HEAD", "OPTIONS"):
        return CLOSED.search(path) is None
    if (method, path) in (("POST", "/v1/traces"), ("POST", "/graphql")):
        return True
    return is_listed(EVERYBODY, method, path) or (is_promoter and is_listed(PROMOTERS, method, path))


def is_looked_at(method: str, path: str) -> bool:
    """Whether the body says as well if a request may be answered."""
    kind = path.rpartition("/mlflow/")[2].partition("/")[0]
    is_of_registry = kind in ("registered-models", "model-versions", "traces") or path.endswith("/experiments/create")
    return method in ("POST", "PATCH", "DELETE") and (is_of_registry or path == "/graphql")


def fault(path: str, body: bytes, is_promoter: bool) -> str | None:
    """What is wrong with the body of a person's request; None where nothing is."""
    try:
        asked = json.loads(body or b"{}") if len(body) <= LONGEST else None
        keys = list(_keys(asked))
    except (ValueError, RecursionError):
        asked, keys = None, []
    if not isinstance(asked, dict):
        return f"its body is no JSON object of at most {LONGEST} bytes"
    if any(LOCATED.search(key) for key in keys):
        return "where artifacts lie is the server's to decide, so leave the location out"
    if path == "/graphql":
        return "GraphQL is for reading" if re.search(r"\b(mutation|subscription)\b", str(asked.get("query"))) else None
    if path.endswith("/model-versions/create") and not LOGGED.fullmatch(str(asked.get("source"))):
        return "the source of a version is a logged model (models:/m-…)"
    if is_promoter:
        return None
    if path.endswith("/registered-models/alias") and (asked.get("alias") != "challenger" or set(asked) - ALIAS):
        return NOT_PROMOTER
    if "/traces" not in path and any(key in DECIDED or key.startswith("mlflow.") for key in keys):
        return f"such a tag says what was decided, or is MLflow's own. {NOT_PROMOTER}"
    return None


def _keys(value: Any) -> Iterator[str]:
    """The names of all fields, and of all tags, at any depth."""
    if isinstance(value, dict):
        yield from value
        yield from (str(value[name]) for name in ("key", "name") if name in value)
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _keys(part)
