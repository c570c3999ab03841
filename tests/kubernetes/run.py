#!/usr/bin/python3
"""The manifests' pods under a Docker engine (cluster.py), and nothing else of make test-docker.

    tests/kubernetes/run.py --build build/dev --out build/kubernetes

Exit code 0: all went well; 1: something did not, and the last line says what. Needs a Docker engine, or root to start
one."""

import argparse
import pathlib
import signal
import subprocess
import sys

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(SOURCE / "tests"), str(SOURCE / "tests/containers")]
import cluster

from engine import Engine, EngineError

IMAGE = "freeride"


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=SOURCE / "build/dev")
    parser.add_argument("--out", type=pathlib.Path, default=SOURCE / "build/kubernetes")
    options = parser.parse_args(argv)
    options.build, options.out = options.build.resolve(), options.out.resolve()
    options.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    faults = []
    try:
        with Engine(options.out) as engine:
            context = options.out / "context"
            subprocess.run([SOURCE / "containers/make-root.sh", options.build, context], check=True)
            engine.docker("build", "--quiet", "--tag", IMAGE, context)
            faults += cluster.run(engine, options.build, IMAGE)
    except (EngineError, subprocess.CalledProcessError) as error:
        faults.append(str(error))
    for fault in faults:
        print(f"test-kubernetes: {fault}", file=sys.stderr)
    print("test-kubernetes: " + ("FAILED" if faults else "all went well"), file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
