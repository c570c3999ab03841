#!/usr/bin/env python3
"""Runs the frameworks' own test suites with the hook in every process and without it, on CPUs, and compares which tests pass.

The suites are had at test time and are no part of this tree: a folder SOURCES/NAME-VERSION, such as pytorch-2.8.0, with a checkout of that
version; what is not there is cloned from GIT, at the version's tag, with the suite's folder alone. The hook comes as it does under Slurm, by
its sitecustomize on the PYTHONPATH, so that children of the tests have it, too. A worker's end of the handover counts whom it has met.

Exit 0: all lists of passes are equal. 1: one differs. 3: none differs, but a suite could not be compared.
"""

import argparse
import dataclasses
import os
import pathlib
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
import xml.etree.ElementTree as xml

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "python")]

import support  # noqa: E402
from freeride import pages  # noqa: E402

PYTEST = ("-q", "-p", "no:cacheprovider", "--continue-on-collection-errors")
LOCAL_RANKS = 16  # of a test's world, at most
START = support.SOURCE / "hooks/python/freeride/_start"  # its sitecustomize hooks every Python


@dataclasses.dataclass
class Suite:
    """One framework's tests."""

    name: str
    package: str  # its version is the tag's
    repository: str
    tag: str
    folders: tuple  # that a checkout needs
    files: tuple  # patterns
    start_in: str = "."
    options: tuple = ()
    ranks: int = 1  # pytests that run one test together; 1: the tests start their ranks
    env: dict = dataclasses.field(default_factory=dict)


PIPELINING = Suite(
    "torch.distributed.pipelining",
    "torch",
    "pytorch/pytorch",
    "v{}",
    ("test/distributed/pipelining",),
    ("test/distributed/pipelining/test_*.py",),
    start_in="test/distributed/pipelining",
    options=("--noconftest",),
)
DEEPSPEED = Suite(
    "DeepSpeed",
    "deepspeed",
    "deepspeedai/DeepSpeed",
    "v{}",
    ("tests",),
    ("tests/unit/pipe/test_*.py", "tests/unit/runtime/pipe/test_*.py", "tests/unit/checkpoint/test_pipeline.py"),
    start_in="tests",
    env={"DS_ACCELERATOR": "cpu", "CI": "1"},
)
MEGATRON = Suite(
    "Megatron-Core",
    "megatron-core",
    "NVIDIA/Megatron-LM",
    "core_v{}",
    ("tests/unit_tests",),
    ("tests/unit_tests/pipeline_parallel/test_schedules.py", "tests/unit_tests/pipeline_parallel/test_helpers.py"),
    # Its conftest downloads data that no test of a schedule reads.
    options=("--noconftest", "-p", "cpu_for_cuda"),
    ranks=8,
)


class Worker(threading.Thread):
    """Takes the page of every rank that attaches, and counts ranks and the waits that they have marked."""

    def __init__(self, run_dir):
        super().__init__(daemon=True)
        self.ranks = self.waits = 0
        self._listeners = [pages.listen(f"{run_dir}/worker-cpu-{number}.sock") for number in range(LOCAL_RANKS)]
        self._end, self._ended = os.pipe()
        self._pages = {}  # connection -> page

    def run(self):
        while True:
            ready = select.select([self._end, *self._listeners, *self._pages], (), ())[0]
            for one in ready:
                if one == self._end:
                    return
                if one in self._listeners:
                    self._take(one.accept()[0])
                else:
                    self._hear(one)

    def _take(self, connection):
        try:
            self._pages[connection] = pages.take_page(connection)
        except (OSError, pages.PageError) as error:
            print(f"peers: a rank's page was not taken: {error}", file=sys.stderr)
            connection.close()
            return
        self.ranks += 1

    def _hear(self, connection):
        try:
            said = connection.recv(64)
        except OSError:
            said = b""
        if not said:
            self.waits += self._pages.pop(connection).view.bubbles
            connection.close()

    def close(self):
        os.write(self._ended, b".")
        self.join()
        for one in [*self._listeners, *self._pages]:
            one.close()


def sources(suite, version, given, fetched, git):
    """The folder of the suite's checkout, or None, and then it is said why."""
    name = f"{suite.repository.split('/')[1]}-{version}"
    if given is not None and (given / name).is_dir():
        return given / name
    folder, tag = fetched / name, suite.tag.format(version)
    if folder.is_dir():
        return folder
    half = fetched / f"{name}.part"
    subprocess.run(["rm", "-rf", str(half)], check=True)
    fetched.mkdir(parents=True, exist_ok=True)
    clone = ["clone", "--quiet", "--depth=1", "--filter=blob:none", "--sparse", "--branch", tag]
    for command in (
        [*clone, f"{git}/{suite.repository}", str(half)],
        ["-C", str(half), "sparse-checkout", "set", *suite.folders],
    ):
        done = subprocess.run(
            ["git", "-c", "advice.detachedHead=false", *command],
            env={**os.environ, "GIT_TERMINAL_PROMPT": "0"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            said = (done.stderr.strip().splitlines() or ["git said nothing"])[-1]
            print(f"peers: {name} is not in PEERS_SOURCES, and {tag} of {suite.repository} cannot be cloned: {said}")
            return None
    half.rename(folder)
    return folder


def results(report):
    """{test: passed, failed, error or skipped} of a report in JUnit's form; {} where the process wrote none."""
    try:
        cases = xml.parse(report).getroot().iter("testcase")
    except (OSError, xml.ParseError):
        return {}
    found = {}
    for case in cases:
        kinds = {part.tag for part in case} & {"failure", "error", "skipped"}
        found[f"{case.get('classname')}.{case.get('name')}"] = next(iter(kinds), "passed")
    return found


def run_pytest(suite, python, checkout, paths, out, tools, run_dir, hooked, watchdog_s):
    """The results of the tests in these files, and what was odd about the run, or ""."""
    out.mkdir(parents=True, exist_ok=True)
    folder = checkout / suite.start_in
    port, processes = support.free_port(), []
    for rank in range(suite.ranks):
        env = support.environment(run_dir, MASTER_ADDR="127.0.0.1", **suite.env)
        env["PYTHONPATH"] += f":{HERE}:{folder}:{tools}"
        if hooked:
            env["PYTHONPATH"] = f"{START}:{env['PYTHONPATH']}"
        if suite.ranks > 1:
            env.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(suite.ranks), MASTER_PORT=str(port))
        with open(out / f"said.{rank}", "w") as said:
            processes.append(
                subprocess.Popen(
                    [python, "-m", "pytest", *PYTEST, f"--junitxml={out}/report.{rank}.xml", *suite.options]
                    + [str(path) for path in paths],
                    cwd=folder,
                    env=env,
                    stdout=said,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )
    odd, name = "", out.name
    for process in processes:
        try:
            code = process.wait(timeout=watchdog_s)
            if code not in (0, 1, 5):  # 5: no test was found
                odd = f"{name} ended with {code}"
        except subprocess.TimeoutExpired:
            odd, watchdog_s = f"{name} was ended after {watchdog_s} s", 1
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)  # and what it has left behind
            except ProcessLookupError:
                pass
            process.wait()
    of_ranks = [results(f"{out}/report.{rank}.xml") for rank in range(suite.ranks)]
    together = dict(of_ranks[0])
    for test in together:
        kinds = {found.get(test, "missing") for found in of_ranks}
        together[test] = kinds.pop() if len(kinds) == 1 else "failed"
    return together, odd


def run_suite(suite, python, checkout, out, tools, hooked, watchdog_s):
    """(results, what was odd, the worker). A process that dies takes no file along but its own: they are then run one by one."""
    paths = sorted(path for pattern in suite.files for path in checkout.glob(pattern))
    with tempfile.TemporaryDirectory(prefix="peers-") as run_dir:  # a socket's path has to be short
        worker = Worker(run_dir)
        worker.start()
        how = (tools, run_dir, hooked, watchdog_s)
        found, odd = run_pytest(suite, python, checkout, paths, out / "all", *how)
        oddities = [odd] if odd else []
        if odd and len(paths) > 1:
            for path in paths:
                of_file, odd = run_pytest(suite, python, checkout, [path], out / path.stem, *how)
                found.update(of_file)
                oddities += [odd] if odd else []
        worker.close()
    return found, oddities, worker


def version_of(python, package):
    code = f"import importlib.metadata; print(importlib.metadata.version({package!r}))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip().split("+")[0]


def compare(suite, venv, args):
    """Prints the suite's row; returns the exit code that it is worth."""
    python = str(venv / "bin/python")
    version = version_of(python, suite.package)
    if not version:
        print(f"peers: {venv} has no {suite.package}; scripts/frameworks-venv.sh makes it")
        return 3
    if (suite.name, version) in args.done:
        return 0
    args.done.add((suite.name, version))
    checkout = sources(suite, version, args.sources, args.out / "sources", args.git)
    if checkout is None:
        return 3
    ways = {}
    for hooked in (False, True):
        out = args.out / re.sub(r"\W+", "-", f"{suite.name}-{version}") / ("hooked" if hooked else "unhooked")
        ways[hooked] = run_suite(suite, python, checkout, out, args.out / "tools", hooked, args.watchdog_s)
    (without, odd_without, _), (hooked, odd_hooked, worker) = ways[False], ways[True]
    passes = [{name for name, kind in found.items() if kind == "passed"} for found in (hooked, without)]
    equal = passes[0] == passes[1]
    verdict = "no test passes" if not passes[0] | passes[1] else "equal" if equal else "differ"
    tests = len(without.keys() | hooked.keys())
    print(
        f"{suite.name:29} {version:8} {tests:5} {len(passes[0]):6} {len(passes[1]):8}  "
        f"{worker.ranks:5} {worker.waits:6}  {verdict}",
        flush=True,
    )
    for name in sorted(passes[0] ^ passes[1]):
        print(f"    {name}: hooked {hooked.get(name, 'missing')}, unhooked {without.get(name, 'missing')}")
    for of, odd in (("hooked", odd_hooked), ("unhooked", odd_without)):
        for line in odd:
            print(f"    {of}: {line}")
    print(end="", flush=True)
    return 1 if not equal else 0 if passes[0] else 3


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--venv", type=pathlib.Path, required=True, help="as scripts/frameworks-venv.sh makes it")
    parser.add_argument("--torch", nargs="*", default=[], help="other torches beside it: VENV-TORCH")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="reports, and what is cloned")
    parser.add_argument("--sources", type=pathlib.Path, help="a folder with checkouts, each NAME-VERSION")
    parser.add_argument("--git", default="https://github.com", help="where the repositories are")
    parser.add_argument("--only", nargs="*", default=[], help="suites, by the beginning of their names")
    parser.add_argument("--watchdog-s", type=int, default=1200, help="for one run of a suite")
    args = parser.parse_args()
    args.venv, args.out = args.venv.absolute(), args.out.absolute()
    args.sources = args.sources.absolute() if args.sources else None
    args.done = set()
    if not (START / "sitecustomize.py").is_file():
        parser.error(f"{START} has no sitecustomize.py: no process would have the hook")
    torches = [args.venv.with_name(f"{args.venv.name}-{torch}") for torch in args.torch]
    planned = [(PIPELINING, venv) for venv in (args.venv, *torches)] + [(DEEPSPEED, args.venv), (MEGATRON, args.venv)]
    chosen = [one for one in planned if not args.only or one[0].name.startswith(tuple(args.only))]
    print(f"{'suite':29} {'version':8} {'tests':>5} {'hooked':>6} {'unhooked':>8}  {'ranks':>5} {'waits':>6}  passes")
    codes = [compare(suite, venv, args) for suite, venv in chosen]
    return 1 if 1 in codes else max(codes, default=3)


if __name__ == "__main__":
    sys.exit(main())
