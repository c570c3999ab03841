"""What compose.yaml says of a service, as `docker run` flags: so the flags that users get are the flags that are
tested.

Debian's docker-compose cannot pass systempaths=unconfined on, and newer ones are not in Debian; hence this reading of
the few keys used."""

import pathlib
import re

import yaml

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "containers"


def _filled(value, env):
    """${NAME:-default} replaced, as compose does."""
    if isinstance(value, str):
        return re.sub(r"\$\{(\w+)(?::-([^}]*))?\}", lambda m: str(env.get(m[1]) or m[2] or ""), value)
    if isinstance(value, list):
        return [_filled(part, env) for part in value]
    if isinstance(value, dict):
        return {key: _filled(part, env) for key, part in value.items()}
    return value


def _service(service, overrides):
    """As compose merges files: lists grow, anything else is replaced."""
    spec = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"][service]
    for name in overrides:
        for key, value in yaml.safe_load((FOLDER / name).read_text())["services"].get(service, {}).items():
            spec[key] = spec.get(key, []) + value if isinstance(value, list) else value
    return spec


def run_flags(service, env, overrides=()):
    """(flags, image, command) of `docker run`. KeyError: a key that this does not know."""
    spec = _filled(_service(service, overrides), env)
    flags, image, command = [], spec.pop("image"), spec.pop("command")
    for key in ("restart", "profiles", "stop_grace_period"):  # who restarts and stops it is the test's affair
        spec.pop(key, None)
    for key, value in spec.items():
        if key in ("init", "read_only"):
            flags += [f"--{key.replace('_', '-')}"] if value else []
        elif key == "environment":
            flags += [part for name, text in value.items() for part in ("--env", f"{name}={text}")]
        elif key == "security_opt":
            # compose looks for the profile beside its file
            flags += [
                part
                for text in value
                for part in ("--security-opt", re.sub(r"^seccomp=(?!unconfined)", f"seccomp={FOLDER}/", text))
            ]
        else:
            name = {
                "network_mode": "network",
                "cap_drop": "cap-drop",
                "cap_add": "cap-add",
                "volumes": "volume",
                "tmpfs": "tmpfs",
                "user": "user",
                "uts": "uts",
                "pid": "pid",
                "cgroup": "cgroupns",
                "cgroup_parent": "cgroup-parent",
            }[key]
            flags += [
                part for text in (value if isinstance(value, list) else [value]) for part in (f"--{name}", str(text))
            ]
    return flags, image, command
