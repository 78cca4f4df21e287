"""The manifests hold together: schemas, commands, ports, labels, volumes, images."""

import re
import shutil
import subprocess
from typing import Any

import kubernetes_validate
import pytest
import yaml

from infinipipe_executor.config import load_config
from support_deploy import DEPLOY, load_manifests, pod_specs, read_command, read_serve, read_torchrun, script_commands

KUBERNETES_VERSION = "1.32"
# Kinds that Kubernetes itself does not know, and the versions that were written for.
OWN_KINDS = {
    "JobSet": "jobset.x-k8s.io/v1alpha2",
    "RayCluster": "ray.io/v1",
    "ServiceMonitor": "monitoring.coreos.com/v1",
}
BASE = load_manifests("kubernetes/base")
ALL = [*BASE, *(manifest for manifest in load_manifests("kubernetes/on-ray") if manifest["kind"] != "Deployment")]


def find(kind: str, name: str) -> Any:
    (found,) = [entry for entry in ALL if entry["kind"] == kind and entry["metadata"]["name"] == name]
    return found


def planner_container() -> Any:
    return find("Deployment", "infinipipe-planner")["spec"]["template"]["spec"]["containers"][0]


def executor_container() -> Any:
    ((_, spec),) = pod_specs(find("JobSet", "infinipipe-run"))
    return spec["containers"][0]


@pytest.mark.parametrize("manifest", ALL, ids=lambda manifest: f"{manifest['kind']}/{manifest['metadata']['name']}")
def test_a_manifest_fits_the_schema_of_its_kind_or_is_of_a_kind_that_is_listed(manifest: Any) -> None:
    if manifest["kind"] in OWN_KINDS:
        assert manifest["apiVersion"] == OWN_KINDS[manifest["kind"]]
    else:
        kubernetes_validate.validate(manifest, KUBERNETES_VERSION, strict=True)


def test_the_planners_command_is_one_that_the_planner_takes_and_its_ports_are_those_it_listens_on() -> None:
    container = planner_container()
    options = read_serve([*container["command"], *container["args"]])
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert options["listen"] == f"0.0.0.0:{ports['grpc']}"
    assert options["metrics_listen"] == f"0.0.0.0:{ports['metrics']}"
    variables = {entry["name"]: entry["value"] for entry in container["env"]}
    assert variables["INFINIPIPE_PLANNER"] == f"127.0.0.1:{ports['grpc']}"
    for probe in ("startupProbe", "readinessProbe"):
        read_command(container[probe]["exec"]["command"], "health")


def test_a_planner_that_lost_its_solvers_is_not_killed_for_it() -> None:
    assert planner_container()["livenessProbe"]["tcpSocket"] == {"port": "grpc"}


def test_every_file_that_a_command_names_lies_in_a_volume_that_is_mounted() -> None:
    container = planner_container()
    options = read_serve([*container["command"], *container["args"]])
    mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
    for name in ("store", "tls_cert", "tls_key", "tokens"):
        assert any(str(options[name]).startswith(f"{mount}/") for mount in mounts), name
    container = executor_container()
    _, run = read_torchrun([*container["command"], *container["args"]])
    config = load_config(DEPLOY / "kubernetes" / "base" / "run.toml")
    mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
    paths = (run.config, config.data.corpus, config.data.cache, config.data.tokenizer)
    assert config.checkpoint is not None
    for path in (*paths, config.planner.tls_ca, config.planner.token_file, config.checkpoint.folder):
        assert any(str(path).startswith(f"{mount}/") for mount in mounts), path


def test_the_executors_command_starts_as_many_ranks_as_the_configuration_needs_on_pods_that_find_the_first() -> None:
    jobset, container = find("JobSet", "infinipipe-run"), executor_container()
    launch, run = read_torchrun([*container["command"], *container["args"]])
    config = load_config(DEPLOY / "kubernetes" / "base" / "run.toml")
    (group,) = jobset["spec"]["replicatedJobs"]
    pods = group["template"]["spec"]["parallelism"]
    assert int(launch.nnodes) == pods == group["template"]["spec"]["completions"]
    assert int(launch.nproc_per_node) == int(container["resources"]["limits"]["nvidia.com/gpu"])
    assert config.cluster.pp_size * config.cluster.sp_size == pods * int(launch.nproc_per_node)
    assert config.cluster.sp_size == int(launch.nproc_per_node), "a stage's ranks lie on one node"
    host, port = launch.rdzv_endpoint.split(":")
    assert host == f"{jobset['metadata']['name']}-{group['name']}-0-0.{jobset['spec']['network']['subdomain']}"
    assert int(port) == container["ports"][0]["containerPort"]
    service, port = run.planner.split(":")
    assert int(port) == {entry["name"]: entry["port"] for entry in find("Service", service)["spec"]["ports"]}["grpc"]


SELECTORS = {
    "Service": lambda spec: spec["selector"],
    "Deployment": lambda spec: spec["selector"]["matchLabels"],
    "PodDisruptionBudget": lambda spec: spec["selector"]["matchLabels"],
    "NetworkPolicy": lambda spec: spec["podSelector"]["matchLabels"],
}
SELECTING = [manifest for manifest in ALL if manifest["kind"] in SELECTORS]


@pytest.mark.parametrize("manifest", SELECTING, ids=lambda entry: f"{entry['kind']}/{entry['metadata']['name']}")
def test_selectors_find_the_pods_they_are_meant_for_and_no_others(manifest: Any) -> None:
    selector = SELECTORS[manifest["kind"]](manifest["spec"])
    pods = [labels for entry in ALL for labels, _ in pod_specs(entry)]
    found = {labels["app.kubernetes.io/component"] for labels in pods if selector.items() <= labels.items()}
    assert found == {manifest["metadata"]["labels"]["app.kubernetes.io/component"]}


def test_the_planner_hears_executors_on_its_service_port_and_prometheus_on_its_metrics_port() -> None:
    rules = find("NetworkPolicy", "infinipipe-planner")["spec"]["ingress"]
    assert [rule["ports"][0]["port"] for rule in rules] == ["grpc", "metrics"]
    ((labels, _),) = pod_specs(find("JobSet", "infinipipe-run"))
    assert rules[0]["from"][0]["podSelector"]["matchLabels"].items() <= labels.items()


@pytest.mark.parametrize(
    ("labels", "spec"),
    [pod for manifest in ALL for pod in pod_specs(manifest)],
    ids=lambda value: value.get("app.kubernetes.io/component", ""),
)
def test_a_pod_is_nobody_and_all_that_it_mounts_is_there(labels: dict[str, str], spec: dict[str, Any]) -> None:
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["runAsUser"] == 10001  # as in the images
    assert spec["automountServiceAccountToken"] is False
    volumes = {volume["name"]: volume for volume in spec.get("volumes", [])}
    claims = {entry["metadata"]["name"] for entry in ALL if entry["kind"] == "PersistentVolumeClaim"}
    for container in spec["containers"]:
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["requests"].keys() >= {"cpu", "memory"}
        mounts = {mount["name"] for mount in container.get("volumeMounts", [])}
        assert mounts == volumes.keys()
        if labels["app.kubernetes.io/component"] != "solvers":
            assert container["securityContext"]["readOnlyRootFilesystem"]
    for volume in volumes.values():
        claim = volume.get("persistentVolumeClaim", {}).get("claimName", "infinipipe-data")
        assert claim in claims | {"infinipipe-data"}  # corpus and checkpoints: the cluster's own, see the README
        assert volume.get("secret", {}).get("defaultMode", 0o440) == 0o440  # the planner refuses keys that all may read


def test_images_are_those_that_the_dockerfiles_make_at_the_version_of_the_project() -> None:
    built = set()
    for path in (DEPLOY / "docker").glob("*.Dockerfile"):
        built |= set(re.findall(r"docker build .* -t (\S+) \.", path.read_text()))
    used = {container["image"] for entry in ALL for _, spec in pod_specs(entry) for container in spec["containers"]}
    assert used == built
    project = (DEPLOY.parent / "pyproject.toml").read_text()
    version = re.search(r'^version = "(.*)"$', project, re.MULTILINE)
    assert version is not None
    assert {image.partition(":")[2] for image in used} == {version[1]}


def test_the_planner_is_alone_with_its_store_and_gets_more_time_to_end_than_it_takes() -> None:
    spec = find("Deployment", "infinipipe-planner")["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    assert spec["template"]["spec"]["terminationGracePeriodSeconds"] > 10  # SHUTDOWN_GRACE_S


def test_ranks_get_less_time_to_save_than_their_pod_gets_to_end() -> None:
    ((_, spec),) = pod_specs(find("JobSet", "infinipipe-run"))
    variables = {entry["name"]: entry["value"] for entry in spec["containers"][0]["env"]}
    assert int(variables["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"]) < spec["terminationGracePeriodSeconds"]


def test_on_ray_the_planner_joins_the_cluster_with_the_options_it_has_without_it() -> None:
    (patch,) = [entry for entry in load_manifests("kubernetes/on-ray") if entry["kind"] == "Deployment"]
    (container,) = patch["spec"]["template"]["spec"]["containers"]
    (script,) = container["args"]
    cluster = find("RayCluster", "infinipipe-solvers")
    (serve,) = script_commands(script, "infinipipe")
    (start,) = script_commands(script, "ray")
    options = read_serve(serve)
    assert options["ray_address"] == f"{cluster['metadata']['name']}-head-svc:6379"
    assert f"--address={options['ray_address']}" in start
    workers = cluster["spec"]["workerGroupSpecs"][0]
    assert options["workers"] == workers["replicas"] * int(workers["rayStartParams"]["num-cpus"])
    alone = planner_container()
    without = read_serve([*alone["command"], *alone["args"]])
    assert {name for name in options if options[name] != without[name]} == {"ray_address", "workers"}
    assert cluster["spec"]["rayVersion"] in (DEPLOY.parent / "constraints.txt").read_text()


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
@pytest.mark.parametrize("folder", ["base", "on-ray"])
def test_kustomize_builds_it(folder: str) -> None:
    done = subprocess.run(
        ["kubectl", "kustomize", str(DEPLOY / "kubernetes" / folder)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    built = {(entry["kind"], entry["metadata"]["name"]): entry for entry in yaml.safe_load_all(done.stdout)}
    config = built["ConfigMap", "infinipipe-run"]["data"]["run.toml"]
    assert config == (DEPLOY / "kubernetes" / "base" / "run.toml").read_text()
    for manifest in built.values():
        assert manifest["metadata"]["namespace"] == "infinipipe"
        if manifest["kind"] not in OWN_KINDS:
            kubernetes_validate.validate(manifest, KUBERNETES_VERSION, strict=True)
    ((labels, spec),) = pod_specs(built["Deployment", "infinipipe-planner"])
    assert labels.get("infinipipe/ray") == ("solvers" if folder == "on-ray" else None)
    assert spec["containers"][0]["readinessProbe"]
