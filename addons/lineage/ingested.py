"""The rows of the lineage index for what was ingested (ingested/<task>/, addons/production/traces/files.py).

    conversation [used] dataset; conversation [became] scenario; dataset [part] dataset (of a file in its folder)
    dataset [trained] adapter, where dvc.lock has a stage that read it and made the adapter

A data set is named by the md5 that DVC gives its file or folder, so each version is a node of its own. A conversation is
named by its key, which holds a hash of its producer's id.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from addons.lineage.tables import NodeKey, Rows
from steps.core.files import json_lines
from steps.policy.adapter import adapter_hash
from steps.project.lock import Lock, file_md5, folder_md5

FOLDER = "ingested"
SETS = ("conversations", "scenarios", "demonstrations", "preferences", "regression")


def ingested(root: Path, lock: Lock) -> Rows:
    """The rows of all ingested folders, and of what dvc.lock says was made of them."""
    rows = Rows()
    for folder in sorted(path for path in (root / FOLDER).glob("*") if path.is_dir()):
        whole: NodeKey = ("dataset", folder_md5(folder))
        rows.node(whole, path=folder.relative_to(root).as_posix())
        for path in sorted(folder / f"{name}.jsonl" for name in SETS):
            if path.exists():
                dataset = rows.node(("dataset", file_md5(path)), path=path.relative_to(root).as_posix())
                rows.edge(dataset, "part", whole)
                for line in filter(None, json_lines(path)):
                    _conversation(rows, json.loads(line), dataset)
    for entry in lock.values():
        deps = [dep for dep in entry.get("deps") or () if dep["path"].split("/")[0] == FOLDER and dep.get("md5")]
        for out in entry.get("outs") or () if deps else ():
            if (root / out["path"] / "adapter_config.json").exists():
                adapter = rows.node(("adapter", adapter_hash(root / out["path"])))
                for dep in deps:
                    rows.edge(rows.node(("dataset", dep["md5"]), path=dep["path"]), "trained", adapter)
    return rows


def _conversation(rows: Rows, row: dict[str, Any], dataset: NodeKey) -> None:
    conversation = rows.node(("conversation", str(row.get("source") or row.get("key"))))
    rows.edge(conversation, "used", dataset)
    if "split" in row and "id" in row:
        scenario = rows.node(("scenario", row["id"]), task=row["task"], split=row["split"])
        rows.edge(conversation, "became", scenario)
