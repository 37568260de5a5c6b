"""Tests of deploy/kuberay.yaml: it fits KubeRay's RayCluster schema, and has all that the studio and the chips need."""

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from backend.chips import SLICES
from backend.cli.arguments import login_from_arguments
from backend.cli.command_line import parse
from backend.settings import CACHE_VARIABLE, DATA_VARIABLE, PROJECT_FOLDER

MANIFEST = PROJECT_FOLDER / "deploy" / "kuberay.yaml"
SCHEMA = json.loads((Path(__file__).with_name("kuberay.schema.json")).read_text("utf-8"))
TOPOLOGY = "cloud.google.com/gke-tpu-topology"


def manifests() -> dict[str, dict[str, Any]]:
    """Return the documents of the file, by kind."""
    return {one["kind"]: one for one in yaml.safe_load_all(MANIFEST.read_text("utf-8"))}


def problems(document: dict[str, Any]) -> list[str]:
    return [error.message for error in Draft202012Validator(SCHEMA).iter_errors(document)]


def cluster() -> dict[str, Any]:
    return copy.deepcopy(manifests()["RayCluster"])


def containers(group: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in group["template"]["spec"]["containers"]}


def test_the_schema_is_one():
    Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("kind", ["RayCluster", "Service", "PersistentVolumeClaim", "NetworkPolicy"])
def test_the_schema_takes_every_document(kind):
    assert problems(manifests()[kind]) == []


SPOILED: dict[str, Callable[[dict[str, Any]], object]] = {
    "another version": lambda one: one.update(apiVersion="ray.io/v2"),
    "a number as text": lambda one: one["spec"]["workerGroupSpecs"][0].update(numOfHosts="1"),
    "no hosts": lambda one: one["spec"]["workerGroupSpecs"][0].update(numOfHosts=0),
    "a parameter that is no text": lambda one: one["spec"]["headGroupSpec"]["rayStartParams"].update({"num-cpus": 0}),
    "a slip of the pen": lambda one: one["spec"]["workerGroupSpecs"][0].update(numOfHost=1),
    "a group without pods": lambda one: one["spec"]["workerGroupSpecs"][0].pop("template"),
    "a group without a most": lambda one: one["spec"]["workerGroupSpecs"][0].pop("maxReplicas"),
    "no head": lambda one: one["spec"].pop("headGroupSpec"),
    "a container without an image": lambda one: one["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0].pop("image"),
    "memory as a number": lambda one: one["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["resources"][
        "limits"
    ].update(memory=8),
}


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED.keys())
def test_what_is_wrong_is_found(spoil):
    document = cluster()
    spoil(document)
    assert problems(document)


def test_the_chips_of_a_group_are_those_of_its_slice():
    for group in cluster()["spec"]["workerGroupSpecs"]:
        shape = group["template"]["spec"]["nodeSelector"][TOPOLOGY]
        resources = containers(group)["ray-worker"]["resources"]
        chips = group["numOfHosts"] * int(resources["limits"]["google.com/tpu"])
        assert chips == math.prod(map(int, shape.split("x"))) == SLICES["v6e"][shape]
        assert resources["requests"]["google.com/tpu"] == resources["limits"]["google.com/tpu"]  # as for every extended resource
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]


def test_the_server_is_started_as_it_can_be(monkeypatch):
    """Check the arguments of `serve`, except the cluster's address, which is on the head node."""
    studio = containers(cluster()["spec"]["headGroupSpec"])["studio"]
    assert studio["command"] == ["python", "app.py"] and studio["args"][0] == "serve"
    place = studio["args"].index("--cluster")
    assert studio["args"][place + 1] == "127.0.0.1:6379"
    arguments = parse(studio["args"][:place] + studio["args"][place + 2 :])
    monkeypatch.setenv("STUDIO_AUTH", "me:secret")  # the pod sets it from the secret, so that no command line shows it
    assert (arguments.host, arguments.port, login_from_arguments(arguments)) == ("0.0.0.0", 7860, ("me", "secret"))
    [service] = manifests()["Service"]["spec"]["ports"]
    assert service["targetPort"] == arguments.port == studio["ports"][0]["containerPort"]


def test_all_pods_share_one_data_folder_and_no_secret_stands_here():
    spec = cluster()["spec"]
    claim = manifests()["PersistentVolumeClaim"]
    studio, worker = containers(spec["headGroupSpec"])["studio"], containers(spec["workerGroupSpecs"][0])["ray-worker"]
    values = [{one["name"]: one.get("value") for one in container["env"]} for container in (studio, worker)]
    assert values[0][DATA_VARIABLE] == values[1][DATA_VARIABLE] and values[0]["HF_HOME"] == values[1]["HF_HOME"]
    assert CACHE_VARIABLE not in values[0] and values[0]["STUDIO_AUTH"] is None
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        names = {one.get("persistentVolumeClaim", {}).get("claimName") for one in group["template"]["spec"]["volumes"]}
        assert claim["metadata"]["name"] in names
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]


def test_the_service_finds_the_head():
    assert manifests()["Service"]["spec"]["selector"] == {
        "ray.io/cluster": cluster()["metadata"]["name"],
        "ray.io/node-type": "head",
    }


def test_no_pod_has_more_rights_than_it_needs():
    spec = cluster()["spec"]
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] > 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"} and not pod["automountServiceAccountToken"]
        for container in containers(group).values():
            rights = container["securityContext"]
            assert not rights["allowPrivilegeEscalation"] and rights["capabilities"] == {"drop": ["ALL"]}


def test_rays_ports_are_reached_from_the_cluster_alone():
    policy = manifests()["NetworkPolicy"]["spec"]
    own = {"matchLabels": {"ray.io/cluster": cluster()["metadata"]["name"]}}
    assert policy["podSelector"] == own and policy["policyTypes"] == ["Ingress"]
    free = [port["port"] for rule in policy["ingress"] if "from" not in rule for port in rule["ports"]]
    assert free == [7860], "everybody reaches the studio, and nothing else"
    assert {"podSelector": own} in [place for rule in policy["ingress"] for place in rule.get("from", ())]
    assert "from-literal" not in MANIFEST.read_text("utf-8"), "no password on a command line"
