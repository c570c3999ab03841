#!/usr/bin/python3
"""The main job, end to end: trains a small GPT in a pipeline and harvests its bubbles with hot-loaded plugins.

    demo/run.py --build build/dev --out build/demo

Everything it prints is measured in this run. Exit code 0: all went well; 1: a fault; 3: a figure missed its goal;
the last lines say what.
"""

import signal
import sys

from main_job import Demo, parse
from rig.processes import Failure


def main(argv=None):
    options = parse(argv, __doc__)
    if not (options.build / "bin/freeride-manager").exists():
        print(f"demo: {options.build} holds no build; run make build, or name another with --build", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        demo = Demo(options)
    except ValueError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2
    try:
        report = demo.run()
    except Failure as error:
        demo.progress.end()
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        demo.progress.end()
        print("demo: interrupted", file=sys.stderr)
        return 130
    finally:
        demo.finish()
    for problem in report["problems"]:
        print(f"demo: {problem}", file=sys.stderr)
    if report["faults"]:
        return 1
    return 3 if report["missed"] else 0


if __name__ == "__main__":
    sys.exit(main())
