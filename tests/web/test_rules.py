"""The alerts, by Prometheus' own tool, and the dashboard's form."""

import json
import pathlib
import re
import subprocess

WEB = pathlib.Path(__file__).resolve().parents[2] / "web"


def promtool(*words):
    done = subprocess.run(
        ["promtool", *words], cwd=WEB / "prometheus", capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_alerts_are_rules_and_go_off_when_they_should():
    assert "rules found" in promtool("check", "rules", "alerts.yml")
    promtool("test", "rules", "alerts_test.yml")


def test_every_alert_has_a_case():
    alerts = set(re.findall(r"- alert: (\w+)", (WEB / "prometheus/alerts.yml").read_text()))
    cases = set(re.findall(r"alertname: (\w+)", (WEB / "prometheus/alerts_test.yml").read_text()))
    assert alerts and alerts == cases


def test_what_dashboard_and_alerts_ask_for_is_what_metrics_has():
    written = set(re.findall(r'"(freeride_\w+)"', (WEB / "src/metrics.cpp").read_text()))
    board = json.loads((WEB / "grafana/freeride.json").read_text())
    asked = " ".join(target["expr"] for panel in board["panels"] for target in panel["targets"])
    rules = re.findall(r"expr:(.*?)(?:for:|labels:)", (WEB / "prometheus/alerts.yml").read_text(), re.S)
    for name in set(re.findall(r"freeride_\w+", asked + " ".join(rules))):
        assert name in written, f"{name} is nowhere in /metrics"
