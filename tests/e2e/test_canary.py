"""The canary in its sandbox: what it finds becomes an event, a metric and a line in the worker's log."""

from rig.testing import System, find_plugin, until


def test_a_flipped_bit_becomes_an_event_and_a_line(tmp_path):
    with System() as system:
        system.start_manager()
        system.start_worker("cpu-0")
        system.wait_workers(1)
        system.listen("device.alarm/")
        system.load(find_plugin("canary.so"), "canary", "--when-idle", params={"inject": 40, "memory_mib": 1})
        verdict = system.wait_verdict("canary")
        assert verdict["kind"] == "finished", verdict
        metrics = system.task("canary")["counters"]["metrics"]
        assert metrics["injected"] == 40 and metrics["alarm.wrong"] >= 39, metrics
        until(lambda: system.seen("device.alarm/"), "an event")
        event = system.seen("device.alarm/")[0]
        assert (event["task"], event["device"], event["alarm"]) == ("canary", "cpu-0", "wrong")
        assert 1 <= event["rise"] <= event["count"] <= 40
        log = (system.root / "worker-cpu-0.log").read_text()
        assert "device cpu-0: side task canary says 'wrong'" in log
        said = system.ctl("logs", "canary").out
        assert "WRONG: cpu-0: memory read: 1 wrong, word " in said


def test_a_device_that_is_well_raises_nothing(tmp_path):
    with System() as system:
        system.start_manager()
        system.start_worker("cpu-0")
        system.wait_workers(1)
        system.listen("device.alarm/")
        system.load(find_plugin("canary.so"), "canary", "--when-idle", params={"rounds": 60, "memory_mib": 1})
        assert system.wait_verdict("canary")["kind"] == "finished"
        metrics = system.task("canary")["counters"]["metrics"]
        assert metrics["rounds"] == 60 and metrics["alarm.wrong"] == 0
        assert [event for event in system.seen("device.alarm/") if event["alarm"] != "slow"] == []
