"""plugins/resnet/compile.sh: the three trainings for the torch of a Python, where there is no build tree."""

import os
import shutil
import subprocess
import sys

from rig.testing import BUILD, SOURCE

SCRIPT = SOURCE / "plugins/resnet/compile.sh"


def test_what_it_compiles_runs_with_this_pythons_torch(tmp_path):
    env = dict(os.environ, CXX="ccache g++" if shutil.which("ccache") else "g++")
    made = subprocess.run([SCRIPT, tmp_path, sys.executable], env=env, text=True, capture_output=True)
    assert made.returncode == 0, made.stderr
    assert made.stdout.split() == [str(tmp_path / f"{name}.so") for name in ("resnet18", "resnet50", "vgg19")]
    small = ["batch=2", "image=32", "classes=4", "width_pct=10", f"python={sys.executable}"]
    for plugin in made.stdout.split():
        words = [word for param in small for word in ("--param", param)]
        ran = subprocess.run([BUILD / "bin/freeride-runner", "check", plugin, *words], text=True, capture_output=True)
        assert ran.returncode == 0, ran.stdout + ran.stderr


def test_a_python_without_torch_is_refused_in_one_line(tmp_path):
    python = tmp_path / "python3"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    made = subprocess.run([SCRIPT, tmp_path / "out", python], text=True, capture_output=True)
    assert made.returncode == 1 and made.stderr == f"compile.sh: {python} has no torch; name the Python that has it\n"
    assert not list((tmp_path / "out").iterdir())
