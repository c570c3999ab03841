"""The misbehaving suite: what becomes of a side task that does one wrong thing, and of the training, the worker and the
host meanwhile.

    suite.py --plugins build/dev/test-plugins    against the system of FREERIDE_RUN_DIR, with the installed freeride-ctl

Needs Python's own library and freeride-ctl only. The worker has to run with FLAGS (below). Exit code 0: every verdict
was as expected."""

import argparse
import dataclasses
import pathlib
import sys
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from rig.ctl import Ctl

# What the worker is started with: limits small enough to be met at once.
FLAGS = [
    "--grace-ms",
    "50",
    "--hang-ms",
    "1000",
    "--create-ms",
    "5000",
    "--init-ms",
    "3000",
    "--stop-ms",
    "4000",
    "--task-pids",
    "64",
    "--scratch-bytes",
    str(16 << 20),
]
MEMORY = "192MiB"
WATCHDOG_S = 240  # a bound against hanging for ever, not a limit on speed


@dataclasses.dataclass
class Case:
    name: str
    plugin: str
    kind: str  # of the verdict
    says: str = ""  # in its reason or limit
    limit: str = ""  # in its limit
    transition: str = ""
    signal: int = 0
    params: dict = dataclasses.field(default_factory=dict)
    stop: bool = False  # misbehaves when told to stop
    flags: tuple = ()


def faulty(where, how, kind, **more):
    # A profile has fewer steps: what a step does wrong, it does in a bubble.
    return Case(f"{how}-{where}", "faulty.so", kind, params={"where": where, "how": how, "after": 12}, **more)


def cases(port=9, pid=0, others_file="/nowhere"):
    """`port`: a TCP port of the host's that listens; `pid`: a process of the host's; `others_file`: another task's."""
    bad = Case
    names = {
        "create": "CreateSideTask",
        "init": "InitSideTask",
        "start": "StartSideTask",
        "step": "RunNextStep",
        "pause": "PauseSideTask",
        "stop": "StopSideTask",
    }
    listed = [
        faulty(where, "hang", "overran", transition=names[where], limit="ms", stop=where == "stop") for where in names
    ]
    return listed + [
        faulty("step", "abort", "crashed", signal=6, transition="RunNextStep"),
        faulty("step", "segv", "crashed", signal=11, transition="RunNextStep"),
        faulty("step", "exit0", "failed", says="exited with code 0", transition="RunNextStep"),
        faulty("step", "throw", "failed", says="thrown on purpose", transition="RunNextStep"),
        faulty("step", "throw_thread", "failed", says="thrown in a thread", transition="RunNextStep"),
        bad("stack-overflow", "stack_overflow.so", "crashed", signal=11),
        bad("spin-blocked", "spin_blocked.so", "overran", limit="ms"),
        bad("stop-itself", "stop_itself.so", "overran", limit="ms"),
        bad("background", "background.so", "overran", limit="ms"),
        bad("stop-signal", "stop_signal.so", "failed", says="nobody had ordered"),
        bad("claim-create", "claim.so", "overran", limit="grace", params={"path": "0,1"}),
        bad("claim-stop", "claim.so", "overran", limit="of itself", params={"path": "2,6"}),
        bad("claim-pause", "claim.so", "overran", limit="grace", params={"path": "2,0"}),
        bad("forge-answer", "forge_answer.so", "overran", limit="ms"),
        bad("fork-bomb", "fork_bomb.so", "failed", says="Operation not permitted"),
        bad("child-behind", "child.so", "failed", transition="InitSideTask"),
        bad("thread-bomb", "thread_bomb.so", "failed", says="pthread_create", limit="processes and threads 64"),
        bad("leak", "hog.so", "out_of_memory", limit="memory 192 MiB", params={"mb": 1}),  # steps that fit any bubble
        bad("map-huge", "map_huge.so", "out_of_memory", says="memory limit", limit="memory 192 MiB"),
        bad("fill-scratch", "fill_scratch.so", "failed", says="No space left", limit="scratch folder 16 MiB"),
        bad("trace-supervisor", "trace_supervisor.so", "finished"),
        bad("set-clock", "set_clock.so", "finished"),
        bad("use-network", "use_network.so", "finished", params={"pid": port}),
        bad("read-files", "read_files.so", "finished", params={"path": others_file}),
        bad("write-files", "write_files.so", "finished", params={"path": others_file}),
        bad("kill-others", "kill_others.so", "finished", params={"pid": pid}),
        bad("raise-priority", "raise_priority.so", "finished"),
        bad("run-program", "run_program.so", "finished"),
        bad("write-lease", "write_lease.so", "crashed", signal=11),
        bad("reopen-fds", "reopen_fds.so", "finished"),
        bad("disturb-disk", "disturb_disk.so", "finished"),
        bad("exhaust-fds", "exhaust_fds.so", "finished"),
        bad("unset-env", "unset_env.so", "finished"),
        bad("close-fds", "close_fds.so", "failed", says="exited with code 0"),
        bad("flood-stdout", "noisy.so", "stopped", stop=True),
    ]


def load(ctl, plugins, case, *flags):
    params = [word for key, value in case.params.items() for word in ("--param", f"{key}={value}")]
    ctl("load", f"{plugins}/{case.plugin}", "--name", case.name, "--memory", MEMORY, *params, *case.flags, *flags)


def wrong_with(case, verdict):
    """What about a verdict is not as expected."""
    wrong = []
    if verdict["kind"] != case.kind:
        wrong.append(f"{verdict['kind']}, expected {case.kind}")
    if case.says and case.says not in verdict["reason"]:
        wrong.append(f"the reason does not say '{case.says}'")
    if case.limit and case.limit not in verdict["limit"]:
        wrong.append(f"the limit is '{verdict['limit']}', expected '{case.limit}'")
    if case.transition and verdict["transition"] != case.transition:
        wrong.append(f"in {verdict['transition'] or 'no transition'}, expected {case.transition}")
    if case.signal and verdict["signal"] != case.signal:
        wrong.append(f"signal {verdict['signal']}, expected {case.signal}")
    return [f"{case.name}: {text} ({verdict['kind']}: {verdict['reason']})" for text in wrong]


def run(ctl, plugins, batch, *flags, log=print):
    """Loads a batch of cases at once and waits for their verdicts; returns what was wrong."""
    wrong, waiting, told = [], {}, set()
    for case in batch:
        load(ctl, plugins, case, *flags)
        waiting[case.name] = case
    end = time.monotonic() + WATCHDOG_S
    while waiting and time.monotonic() < end:
        states = ctl.states()
        for name, case in list(waiting.items()):
            state = states.get(name, {})
            verdict = state.get("verdict") or {}
            if verdict.get("kind"):
                del waiting[name]
                wrong += wrong_with(case, verdict)
                log(
                    f"  {name:<18} {verdict['kind']}: {verdict['reason']}"
                    + (f" ({verdict['limit']})" if verdict["limit"] else "")
                )
            elif case.stop and name not in told and state.get("counters", {}).get("steps", 0) > 3:
                told.add(name)
                ctl("stop", name)
        time.sleep(0.2)
    return wrong + [f"{name}: no verdict within {WATCHDOG_S} s ({ctl.states().get(name)})" for name in waiting]


def batches(listed, size=8):
    return [listed[at : at + size] for at in range(0, len(listed), size)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plugins", required=True, help="folder of the test plugins")
    parser.add_argument("--ctl", default="freeride-ctl")
    parser.add_argument("--stage", default=None, help="stage whose worker they go to")
    parser.add_argument("--when-idle", action="store_true", help="no training is there")
    options = parser.parse_args()
    flags = (["--stage", options.stage] if options.stage else []) + (["--when-idle"] if options.when_idle else [])
    ctl, wrong = Ctl(options.ctl), []
    for batch in batches(cases()):
        wrong += run(ctl, options.plugins, batch, *flags)
    for line in wrong:
        print(line, file=sys.stderr)
    print("suite: " + (f"{len(wrong)} verdicts were not as expected" if wrong else "every verdict as expected"))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
