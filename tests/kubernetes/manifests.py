"""The manifests as a cluster would get them: put together by kubectl's kustomize, and read."""

import functools
import pathlib
import subprocess

import yaml

SOURCE = pathlib.Path(__file__).resolve().parents[2]
FOLDER = SOURCE / "containers/kubernetes"
TRIAL = pathlib.Path(__file__).resolve().parent / "trial"
ON_HOSTS = TRIAL.with_name("keys_on_hosts")


@functools.cache
def tools():
    """The folder of kubectl and kubernetes-validate."""
    done = subprocess.run([SOURCE / "scripts/kubernetes-tools.sh"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"kubernetes-tools.sh failed: {done.stderr.strip()}")
    return pathlib.Path(done.stdout.strip())


@functools.cache
def text(folder):
    """One stream of YAML. An error or a warning is a RuntimeError."""
    done = subprocess.run([tools() / "kubectl", "kustomize", folder], capture_output=True, text=True, check=False)
    if done.returncode != 0 or done.stderr:
        raise RuntimeError(f"kubectl kustomize {folder}: {done.stderr.strip()}")
    return done.stdout


def read(stream):
    return [each for each in yaml.safe_load_all(stream) if each]


def objects(folder):
    return read(text(folder))


def one(found, kind, name):
    (it,) = [each for each in found if each["kind"] == kind and each["metadata"]["name"] == name]
    return it


def of_kind(found, kind):
    return [each for each in found if each["kind"] == kind]


def pods(found):
    """{name: pod template} of all that makes pods."""
    return {each["metadata"]["name"]: each["spec"]["template"] for each in found if "template" in each.get("spec", {})}


def containers(template):
    return template["spec"].get("initContainers", []) + template["spec"]["containers"]
