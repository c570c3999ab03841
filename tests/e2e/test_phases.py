"""Idle phases have their name from a rank's page, through worker and manager, to all that shows them."""

import contextlib
import subprocess
import time
import urllib.request

from rig.phases import PhaseRank
from rig.processes import free_port
from rig.testing import System, find_plugin, until


def text_of(system, *words):
    """As people see it."""
    words = [system.tree.program("freeride-ctl"), *words]
    return subprocess.run(words, env=system.env, capture_output=True, text=True, timeout=120).stdout


def phases_of(system):
    jobs = system.ok("report")["jobs"]
    return {phase["phase"]: phase for job in jobs for phase in job["phases"]}


def start_web(system):
    address = f"127.0.0.1:{free_port()}"
    system.start("web", [system.tree.program("freeride-web"), "--listen", address])

    def metrics():
        with contextlib.suppress(OSError):
            return urllib.request.urlopen(f"http://{address}/metrics", timeout=30).read().decode()
        return ""

    return metrics


def test_a_phase_has_its_name_wherever_it_is_shown():
    with System() as system:
        system.start_manager()
        system.start_worker("cpu-0", "--sandbox", "none")
        metrics = start_web(system)
        with PhaseRank(system) as rank:
            for name in ("rollout", "save", "rollout"):
                rank.begin(name)
                time.sleep(0.05)
                rank.end()
            known = until(lambda: phases_of(system) if len(phases_of(system)) == 2 else None, "both names are reported")
            until(lambda: phases_of(system)["rollout"]["count"] == 2, "both rollouts are counted")
            assert known["save"]["count"] == 1 and known["save"]["idle_ns"] >= 50e6, known
            assert " rollout " in text_of(system, "report")

            rank.begin("rollout")
            shown = until(
                lambda: text if "rollout for " in (text := text_of(system, "ranks")) else None, "the phase is shown"
            )
            assert "PHASE" in shown and "no_messages" not in shown, shown
            assert "rl/0: in the phase rollout for " in text_of(system, "why", "rl/0")
            rank.end()
            until(lambda: "rollout for " not in text_of(system, "ranks"), "its end is shown")

            for family in ("phases_total", "phase_seconds_total", "phase_harvested_seconds_total"):
                series = f'freeride_idle_{family}{{job="rl",phase="save"}}'
                until(lambda s=series: s in metrics(), f"/metrics has {series}")
            until(lambda: 'freeride_idle_phases_total{job="rl",phase="rollout"} 3' in metrics(), "the third is counted")


def test_what_side_tasks_do_in_a_phase_is_told_under_its_name():
    with System() as system:
        system.start_manager()
        system.start_worker("cpu-0", "--sandbox", "none")
        with PhaseRank(system) as rank:
            rank.begin("rollout")  # as long as it takes: a phase of a rank is where side tasks start
            system.load(find_plugin("counter.so"), "counts", "--stage", 0, params={"step_us": 200})
            system.wait_steps("counts", 20)
            rank.end()
            phase = until(lambda: phases_of(system).get("rollout"), "the phase is reported")
            until(lambda: phases_of(system)["rollout"]["harvested_ns"] > 0, "its harvest is reported")
            assert 0 < phases_of(system)["rollout"]["harvested_ns"] <= phase["idle_ns"], phase
