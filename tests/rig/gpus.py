"""What nvidia-smi says of this host's GPUs."""

import dataclasses
import subprocess


@dataclasses.dataclass(frozen=True)
class Gpu:
    uuid: str
    name: str
    driver: str
    memory_bytes: int


def query(what, *words):
    """The driver's answer, a list of fields for each GPU (or process); empty where there is no driver."""
    try:
        done = subprocess.run(
            ["nvidia-smi", f"--query-{what}", "--format=csv,noheader,nounits", *map(str, words)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    except OSError:
        return []
    return [line.split(", ") for line in done.stdout.strip().splitlines()] if done.returncode == 0 else []


def gpus():
    return [
        Gpu(uuid, name, driver, int(mebibytes) << 20)
        for uuid, name, driver, mebibytes in query("gpu=uuid,name,driver_version,memory.total")
    ]
