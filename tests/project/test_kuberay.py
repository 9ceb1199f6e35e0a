"""The manifests in deploy/kuberay/: against KubeRay's schema, and against what the code asks of a cluster.

tests/support/kuberay.json is the part of the ray.io/v1 CRDs (KubeRay's commit feeaf72fa, August 2026) that the manifests
use; a key that it does not have is refused, so a manifest that grows needs more of it.
"""

from __future__ import annotations

import copy
import json
import re
from importlib import metadata
from typing import Any

import jsonschema
import pytest
import yaml

from steps.core.params import Params
from tests.conftest import ROOT

SCHEMAS = json.loads((ROOT / "tests" / "support" / "kuberay.json").read_text())
FOLDER = ROOT / "deploy" / "kuberay"
MANIFESTS = {path.stem: yaml.safe_load(path.read_text()) for path in sorted(FOLDER.glob("*.yaml"))}


def cluster(manifest: dict[str, Any]) -> dict[str, Any]:
    """The cluster's part of a manifest."""
    spec: dict[str, Any] = manifest["spec"]
    return spec if manifest["kind"] == "RayCluster" else spec["rayClusterSpec"]


def test_both_manifests_are_there() -> None:
    assert {manifest["kind"] for manifest in MANIFESTS.values()} == {"RayCluster", "RayJob"}


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_fits_kuberays_schema(name: str) -> None:
    manifest = MANIFESTS[name]
    assert manifest["apiVersion"] == "ray.io/v1"
    jsonschema.validate(manifest, SCHEMAS[manifest["kind"]])


@pytest.mark.parametrize("name", MANIFESTS)
def test_the_schema_refuses_what_kuberay_would(name: str) -> None:
    for path, value in ((("rayVersion",), 2.6), (("workerGroupSpecs", 0, "replica"), 2), (("headGroupSpec",), None)):
        broken = copy.deepcopy(MANIFESTS[name])
        part: Any = cluster(broken)
        for key in path[:-1]:
            part = part[key]
        part[path[-1]] = value
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(broken, SCHEMAS[broken["kind"]])


@pytest.mark.parametrize("name", MANIFESTS)
def test_the_cluster_is_what_the_code_needs(name: str) -> None:
    """The locked Ray, a token, engines on workers alone, and memory that they share for the object store."""
    spec = cluster(MANIFESTS[name])
    assert spec["rayVersion"] == metadata.version("ray")
    assert spec["authOptions"] == {"mode": "token"}
    assert spec["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        assert group["rayStartParams"]["disable-usage-stats"] == "true"
    for group in spec["workerGroupSpecs"]:
        pod = group["template"]["spec"]
        [container] = pod["containers"]
        assert container["resources"]["limits"] == container["resources"]["requests"]
        assert {mount["mountPath"] for mount in container["volumeMounts"]} == {"/dev/shm"}
        assert [volume["name"] for volume in pod["volumes"]] == [mount["name"] for mount in container["volumeMounts"]]


@pytest.mark.parametrize("name", MANIFESTS)
def test_the_settings_that_a_manifest_names_are_settings(name: str) -> None:
    text = (FOLDER / f"{name}.yaml").read_text()
    settings: dict[str, dict[str, Any]] = {}
    for section, key, value in re.findall(r"--set (\w+)\.(\w+)=([\w:/.]+)", text):
        settings.setdefault(section, {})[key] = int(value) if value.isdigit() else value
    assert Params.model_validate(settings).policy.kind == "ray"
