"""What systems.py does in each system, as root there, with that system's Python: the wheel of /mnt/wheel into a virtual
environment that belongs to root, the rest as a user who may not write there. Prints one JSON object."""

import glob
import json
import os
import pathlib
import platform
import re
import subprocess
import sys

VENV = pathlib.Path("/opt/a venv")
USER = 1000


def run(*words, user=None):
    """(exit code, what was said)"""
    more = {"user": user, "group": user, "extra_groups": []} if user else {}
    env = {"PATH": f"{VENV}/bin:/usr/bin:/bin", "HOME": "/home/user" if user else "/root", "LANG": "C.UTF-8"}
    words = [str(word) for word in words]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=env, cwd="/", timeout=900, **more)
    return done.returncode, (done.stdout + done.stderr).strip()


def main():
    os.makedirs("/home/user")
    os.chown("/home/user", USER, USER)
    with open("/etc/passwd", "a") as users:
        users.write(f"user:x:{USER}:{USER}::/home/user:/bin/sh\n")
    (wheel,) = glob.glob("/mnt/wheel/*.whl")
    found = {"python": platform.python_version(), "glibc": platform.libc_ver()[1]}
    pip = [VENV / "bin/python", "-m", "pip", "--disable-pip-version-check"]
    code, said = run(sys.executable, "-m", "venv", "--system-site-packages", VENV)
    if code == 0:
        code, said = run(*pip, "install", "--no-index", wheel)
    found["install"] = "ok" if code == 0 else said
    if code == 0:
        code, said = run("freeride-ctl", "doctor", user=USER)
        found["doctor"] = "ok" if code == 0 else said
        code, said = run(VENV / "bin/python", "/mnt/tests/package/from_wheel.py", VENV, user=USER)
        if code == 0:
            counters = json.loads(said.splitlines()[-1])
            found["side task"] = f"{counters['steps']} steps, {counters['harvested_ns'] / 1e6:.1f} ms harvested"
        else:
            found["side task"] = f"failed: {said}"
        code, said = run(*pip, "uninstall", "--yes", "freeride-bubbles")
        left = [str(path) for path in VENV.rglob("*") if re.search("freeride", path.name)]
        found["uninstall"] = "ok" if code == 0 and not left else f"left: {said} {left}"
    print(json.dumps(found))


main()
