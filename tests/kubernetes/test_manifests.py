"""The manifests for Kubernetes agree with the schemas, with each other and with the programs, as far as that shows
without a cluster."""

import json
import os
import pathlib
import re
import subprocess
import tomllib

import manifests
import pytest
import yaml
from manifests import FOLDER, ON_HOSTS, SOURCE, TRIAL

BUILD = pathlib.Path(os.environ["FREERIDE_BUILD_DIR"])
OVERLAYS = sorted(path for path in (FOLDER / "overlays").iterdir()) + [TRIAL, ON_HOSTS]
EXAMPLES = sorted((FOLDER / "examples").glob("*.yaml"))
VERSIONS = ("1.30", "1.35")  # the oldest that has all that is used, and the newest that is known
PORTS = {"commands": 7420, "events": 7421, "nodes": 7422, "web": 7473}

every_overlay = pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.name)


def validate(path, version):
    """What kubernetes-validate has against it. What it has no schema for it only warns of."""
    done = subprocess.run(
        [manifests.tools() / "kubernetes-validate", "--strict", "-k", version, path],
        capture_output=True,
        text=True,
        check=False,
    )
    return [line for line in (done.stdout + done.stderr).splitlines() if not line.startswith("INFO")], done.returncode


def everything():
    """(where, pod template) of all manifests."""
    for overlay in OVERLAYS:
        for name, template in manifests.pods(manifests.objects(overlay)).items():
            yield f"{overlay.name}: {name}", template
    for example in EXAMPLES:
        for name, template in manifests.pods(manifests.read(example.read_text())).items():
            yield f"{example.name}: {name}", template


def ours(found):
    """(pod's name, container) of those that run a program of FreeRide's."""
    for name, template in manifests.pods(found).items():
        for container in manifests.containers(template):
            if container["command"][0].startswith("freeride-"):
                yield name, container


def option_names(program):
    done = subprocess.run([BUILD / "bin" / program, "--help"], capture_output=True, text=True, check=True)
    return set(re.findall(r"^  (?:-\w,)?--([\w-]+)", done.stdout, re.M))


@pytest.mark.parametrize("version", VERSIONS)
@every_overlay
def test_what_kustomize_makes_is_valid(overlay, version, tmp_path):
    file = tmp_path / "all.yaml"
    file.write_text(manifests.text(overlay))
    assert validate(file, version) == ([], 0)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_examples_are_valid(example, version):
    assert validate(example, version) == ([], 0)


def test_a_mistake_is_found(tmp_path):
    """Of the check: a field that no pod has, and one of another type."""
    for wrong in ("hostPIDs: true", "hostPID: 7"):
        text = manifests.text(TRIAL)
        assert text.count("shareProcessNamespace: true") == 1
        file = tmp_path / "wrong.yaml"
        file.write_text(text.replace("shareProcessNamespace: true", wrong))
        said, code = validate(file, VERSIONS[-1])
        assert code == 1 and "daemonset/freeride-node" in said[0]


@every_overlay
def test_every_object_is_in_the_namespace(overlay):
    wide = {"Namespace", "PriorityClass"}
    for each in manifests.objects(overlay):
        assert (each["metadata"].get("namespace") == "freeride") == (each["kind"] not in wide), each["metadata"]


@every_overlay
def test_one_image(overlay):
    found = manifests.objects(overlay)
    images = {one["image"] for pod in manifests.pods(found).values() for one in manifests.containers(pod)}
    version = re.search(r"project\([^)]*VERSION\s+([\d.]+)", (SOURCE / "CMakeLists.txt").read_text())[1]
    assert len(images) == 1
    assert re.fullmatch(rf"(registry\.example/)?freeride:{re.escape(version)}", images.pop())


def test_flags_and_variables_are_the_programs():
    seen = set()
    for overlay in OVERLAYS:
        for where, container in ours(manifests.objects(overlay)):
            program = container["command"][0]
            known = option_names(program)
            assert container["command"][1:] == [], where
            for word in container.get("args", []):
                assert re.fullmatch(r"--[\w-]+=.+", word), word
                assert word[2:].split("=")[0] in known, (program, word)
            paths = {"config", "run-dir", "state-dir"}
            for variable in container.get("env", []):
                if variable["name"].startswith("FREERIDE_"):
                    assert variable["name"][9:].lower().replace("_", "-") in known | paths, (program, variable)
            seen.add(program)
    assert seen == {"freeride-manager", "freeride-node", "freeride-web", "freeride-recorder"}


def test_the_hook_knows_the_variables_of_the_training():
    known = (SOURCE / "docs/trainers/settings.md").read_text()
    (job,) = manifests.read((FOLDER / "examples/training.yaml").read_text())
    (container,) = job["spec"]["template"]["spec"]["containers"]
    names = [each["name"] for each in container["env"] if each["name"].startswith("FREERIDE_")]
    assert names and all(f"`{name}`" in known for name in names)


def test_the_settings_are_the_programs():
    """Of each freeride.toml, with its remarks taken for settings."""
    files = sorted(FOLDER.rglob("freeride.toml"))
    assert files
    for file in files:
        settings = tomllib.loads(re.sub(r"^# (\w+ = )", r"\1", file.read_text(), flags=re.M))
        assert settings and all(settings.values())
        for section, values in settings.items():
            assert {name.replace("_", "-") for name in values} <= option_names(f"freeride-{section}")


@every_overlay
def test_ports_services_and_policies_agree(overlay):
    found = manifests.objects(overlay)
    template = manifests.one(found, "Deployment", "freeride-manager")["spec"]["template"]
    opened = {
        port["name"]: port["containerPort"] for one in manifests.containers(template) for port in one.get("ports", [])
    }
    words = [word for one in manifests.containers(template) for word in one.get("args", [])]
    listening = [int(re.search(r":(\d+)$", word)[1]) for word in words if word.startswith("--listen=")]
    assert listening[-1] == PORTS["commands"] and set(listening[:-1]) <= {PORTS["web"]}
    assert opened == {name: port for name, port in PORTS.items() if name != "web" or PORTS["web"] in listening}

    served = {}
    for service in manifests.of_kind(found, "Service"):
        assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
        for port in service["spec"]["ports"]:
            assert port["targetPort"] == port["name"]
            served[port["name"]] = port["port"]
    assert served == opened

    policies = {each["metadata"]["name"]: each["spec"] for each in manifests.of_kind(found, "NetworkPolicy")}
    assert policies["freeride-default"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    let_in = [rule for spec in policies.values() for rule in spec.get("ingress", [])]
    assert {port["port"] for rule in let_in for port in rule["ports"]} == set(opened.values())
    assert all(rule["from"] for rule in let_in)
    let_out = [rule for spec in policies.values() for rule in spec.get("egress", [])]
    assert {port["port"] for rule in let_out for port in rule["ports"]} == set(opened.values()) - {7473} | {53}
    for spec in policies.values():
        wanted = spec["podSelector"].get("matchLabels", {}).items()
        pods = manifests.pods(found).values()
        assert any(wanted <= pod["metadata"]["labels"].items() for pod in pods), spec

    node = manifests.one(found, "DaemonSet", "freeride-node")["spec"]["template"]
    (container,) = [one for one in node["spec"]["containers"] if one["name"] == "node"]
    (service,) = [each for each in manifests.of_kind(found, "Service") if each["metadata"]["name"] != "freeride-web"]
    assert f"--manager=tcp://{service['metadata']['name']}:{PORTS['commands']}" in container["args"]


@every_overlay
def test_what_is_mounted_is_there(overlay):
    found = manifests.objects(overlay)
    guide = (SOURCE / "docs/kubernetes.md").read_text()
    claims = {each["metadata"]["name"] for each in manifests.of_kind(found, "PersistentVolumeClaim")}
    maps = {each["metadata"]["name"] for each in manifests.of_kind(found, "ConfigMap")}
    secrets = set()
    for name, template in manifests.pods(found).items():
        volumes = {each["name"]: each for each in template["spec"]["volumes"]}
        used = {mount["name"] for one in manifests.containers(template) for mount in one.get("volumeMounts", [])}
        assert used == set(volumes), name
        for volume in volumes.values():
            if "secret" in volume:
                secrets.add(volume["secret"]["secretName"])
                assert volume["secret"]["defaultMode"] == 0o400, volume  # key files are closed to others
            if "configMap" in volume:
                assert volume["configMap"]["name"] in maps
            if "persistentVolumeClaim" in volume:
                assert volume["persistentVolumeClaim"]["claimName"] in claims
        # With it the kubelet gives the group the right to read, and a key is refused.
        assert "fsGroup" not in template["spec"].get("securityContext", {})
        for one in manifests.containers(template):
            paths = {mount["mountPath"] for mount in one.get("volumeMounts", [])}
            for word in one.get("args", []):
                if match := re.search(r"=(/[^$]+)", word):
                    assert any(match[1].startswith(path) for path in paths), (name, word)
    for secret in secrets:
        assert f"create secret generic {secret} " in guide, secret


def test_a_secret_is_read_past_its_links():
    """A Secret's files are links, and its folder is everybody's: ..data is neither."""
    for where, template in everything():
        secrets = {each["name"] for each in template["spec"]["volumes"] if "secret" in each}
        for one in manifests.containers(template):
            mounts = {each["mountPath"] for each in one.get("volumeMounts", []) if each["name"] in secrets}
            for word in one.get("args", []):
                for path in mounts:
                    if f"={path}" in word and "token" not in word:
                        assert f"={path}/..data" in word, (where, word)


@pytest.mark.parametrize("where, template", everything(), ids=lambda value: value if isinstance(value, str) else "")
def test_nothing_is_asked_for_that_is_not_needed(where, template):
    spec = template["spec"]
    training = where.startswith("training.yaml")
    for forbidden in ("hostNetwork", "hostIPC"):
        assert forbidden not in spec
    if not training:
        assert spec["automountServiceAccountToken"] is False and spec["enableServiceLinks"] is False
        assert spec["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
    for one in manifests.containers(template):
        resources = one.get("resources", {})
        asked = {**resources.get("requests", {}), **resources.get("limits", {})}
        assert training or not any("gpu" in name for name in asked), one["name"]
        context = one.get("securityContext", {})
        assert not context.get("privileged") and "procMount" not in context
        if training:
            continue
        assert {"cpu", "memory"} <= set(resources["requests"]) and "memory" in resources["limits"]
        assert "cpu" not in resources["limits"], "a worker that is throttled gives devices back late"
        assert context["allowPrivilegeEscalation"] is False and context["readOnlyRootFilesystem"] is True
        assert context["capabilities"]["drop"] == ["ALL"]
        if one["name"] != "node":
            assert "add" not in context["capabilities"] and "seccompProfile" not in context


@every_overlay
def test_a_node_may_what_a_worker_under_compose_may(overlay):
    worker = yaml.safe_load((FOLDER.parent / "compose.yaml").read_text())["services"]["worker"]
    node = manifests.pods(manifests.objects(overlay))["freeride-node"]["spec"]
    (context,) = [one["securityContext"] for one in node["containers"] if one["name"] == "node"]
    assert sorted(context["capabilities"]["add"]) == sorted(worker["cap_add"])
    assert context["seccompProfile"]["type"] == "Localhost"
    assert node["terminationGracePeriodSeconds"] > int(worker["stop_grace_period"].rstrip("s"))
    # The profile is brought by the pod itself, to where the kubelet looks.
    (init,) = node["initContainers"]
    (mount,) = init["volumeMounts"]
    (volume,) = [each for each in node["volumes"] if each["name"] == mount["name"]]
    *_, source, target = init["command"]
    brought = pathlib.Path(volume["hostPath"]["path"]) / pathlib.Path(source).name
    assert target == mount["mountPath"] + "/"
    assert str(brought) == f"/var/lib/kubelet/seccomp/{context['seccompProfile']['localhostProfile']}"
    # Of the pod's process namespaces only one can be.
    assert not (node.get("hostPID") and node.get("shareProcessNamespace"))


def test_the_profile_is_of_the_form_that_all_runtimes_read():
    """containerd knows the OCI's fields only, and passes over others without a word: they must not decide anything."""
    profile = json.loads((FOLDER.parent / "worker-container.seccomp.json").read_text())
    assert set(profile) == {"comment", "defaultAction", "archMap", "syscalls"}
    assert all(not architecture["subArchitectures"] for architecture in profile["archMap"])
    for rule in profile["syscalls"]:
        assert set(rule) <= {"names", "action", "args", "errnoRet"}


def test_the_guides_example_is_the_overlays():
    """As objects: remarks differ in their columns."""
    guide = (SOURCE / "docs/kubernetes.md").read_text()
    (block,) = re.findall(r"```yaml\n(apiVersion: kustomize.*?)```", guide, re.S)
    assert yaml.safe_load(block) == yaml.safe_load((FOLDER / "overlays/example/kustomization.yaml").read_text())


def test_what_the_guide_makes_is_what_the_example_wants():
    """The guide's second step makes Secrets, so without a choice no file of a host's is waited for."""
    seen = []
    for overlay in (FOLDER / "overlays/example", ON_HOSTS):
        node = manifests.pods(manifests.objects(overlay))["freeride-node"]["spec"]
        seen += [each for each in node["volumes"] if each["name"].startswith("key")]
    assert seen == [
        {"name": "keys", "secret": {"secretName": "freeride-node-keys", "defaultMode": 0o400}},
        {"name": "key", "hostPath": {"path": "/etc/freeride/node.key", "type": "File"}},
    ]


def test_gpus_are_seen_by_their_processes_numbers():
    node = manifests.pods(manifests.objects(FOLDER / "overlays/nvidia"))["freeride-node"]["spec"]
    assert node["hostPID"] is True and node["runtimeClassName"] == "nvidia"
