#!/usr/bin/python3
"""What it costs to look: freeride-web's page in a headless Chromium, and its viewers.

    bench/see.py --build build/dev                # all figures, merged into bench/results/see.json
    bench/see.py --build build/dev --quick --out /tmp/see.json    # a dry run: short, few viewers

Bubbles are a feeder's, published over the real bus of a real manager, whose broker forwards them. Run it on an
otherwise idle machine. The file's other keys are kept.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request

SOURCE = pathlib.Path(__file__).resolve().parents[1]
sys.path += [str(SOURCE / "tests"), str(SOURCE / "tests/web")]

import browser
import feeder

from rig.processes import Failure, until, write_whole
from rig.processors import first_on_the_processors
from rig.statistics import quantile
from rig.system import System
from rig.tree import Tree


def cpu_seconds(process):
    fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cpu_pct(processes, seconds):
    """Of one core, for each process, over the next `seconds`."""
    before, began = [cpu_seconds(process) for process in processes], time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - began
    return [100 * (cpu_seconds(process) - used) / took for process, used in zip(processes, before)]


class Viewers:
    """`count` open pages, as the server sees them: connections to the live stream, all read by one thread."""

    def __init__(self, address, count):
        import selectors

        where = urllib.parse.urlsplit(address)
        self.frames, self.lost, self._stop = 0, 0, threading.Event()
        self._selector = selectors.DefaultSelector()
        for _ in range(count):
            one = socket.create_connection((where.hostname, where.port), timeout=60)
            one.sendall(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            one.setblocking(False)
            self._selector.register(one, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self):
        while not self._stop.is_set():
            for key, _ in self._selector.select(0.5):
                data = key.fileobj.recv(1 << 20)
                self.frames += data.count(b"data: ")
                if not data:
                    self.lost += 1
                    self._selector.unregister(key.fileobj)

    def close(self):
        self._stop.set()
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()


def measure_page(tree, quick):
    """64 lanes at 6,400 bubbles a second: how soon the first is drawn, and how evenly frames come."""
    opens, seconds, firsts = (2, 5, []) if quick else (10, 20, [])
    with System(tree) as system:
        system.start_manager()
        with feeder.Feeder(system.run_dir, ranks=64, rate=6400) as feed:
            address = browser.start_web(system)
            driver = browser.chromium()
            try:
                for _ in range(opens):
                    driver.get("about:blank")
                    driver.get(address)
                    browser.wait_page(driver, "window.freeride.first_bubble_ms !== null", "the first bubble is drawn")
                    firsts.append(browser.figures(driver)["first_bubble_ms"])
                browser.wait_page(driver, "document.querySelectorAll('#labels div').length === 64", "64 lanes")
                driver.execute_script("freeride.intervals_ms.length = freeride.draw_ms.length = 0")
                before, sent, began = browser.figures(driver)["bubbles"], feed.sent, time.monotonic()
                time.sleep(seconds)
                took, now = time.monotonic() - began, browser.figures(driver)
                sent = feed.sent - sent
            finally:
                driver.quit()
    return {
        "first_bubble_ms": round(quantile(firsts, 0.5), 1),
        "first_bubble_ms_worst": round(max(firsts), 1),
        "frame_p95_ms_64_lanes": round(quantile(now["intervals_ms"], 0.95), 1),
        "draw_p95_ms_64_lanes": round(quantile(now["draw_ms"], 0.95), 2),
        "fed_bubbles_per_s": round(sent / took),
        "shown_bubbles_per_s": round((now["bubbles"] - before) / took),
    }


def measure_viewers(tree, quick):
    """Processor time of freeride-web and of the manager, with no page and with a hundred, in turns."""
    count, seconds, turns = (10, 3, 1) if quick else (100, 10, 5)
    web, without, with_pages = [], [], []
    with System(tree) as system:
        manager = system.start_manager()
        with feeder.Feeder(system.run_dir, ranks=64, rate=6400):
            address = browser.start_web(system, "--max-viewers", "200")
            processes = [system.processes["web"], manager]
            time.sleep(2)
            for _ in range(turns):
                without.append(cpu_pct(processes, seconds)[1])
                viewers = Viewers(address, count)
                until(lambda seen=viewers: seen.frames >= count, "every viewer has its first frame")
                used = cpu_pct(processes, seconds)
                viewers.close()
                if viewers.lost:
                    raise Failure(f"{viewers.lost} of {count} viewers were dropped: they were read too slowly")
                web.append(used[0])
                with_pages.append(used[1])
    return {
        "web_cpu_pct_100_viewers": round(sum(web) / turns, 1),
        "manager_cpu_pct_no_viewer": round(sum(without) / turns, 1),
        "manager_cpu_change_pct_100_viewers": round((sum(with_pages) - sum(without)) / turns, 2),
        "viewers": count,
    }


def measure_metrics(tree, quick):
    """How long a scrape takes with a thousand devices."""
    devices, scrapes, times = 1000, 3 if quick else 30, []
    with System(tree) as system:
        system.start_manager()
        with feeder.Feeder(system.run_dir, ranks=devices, rate=1):
            address = browser.start_web(system) + "metrics"

            def scrape():
                return urllib.request.urlopen(address, timeout=120).read()

            until(lambda: scrape().count(b"\nfreeride_worker_up{") >= devices, "a thousand devices are known")
            for _ in range(scrapes):
                began = time.monotonic()
                text = scrape()
                times.append(1000 * (time.monotonic() - began))
    return {
        "metrics_1000_devices_ms": round(quantile(times, 0.5), 1),
        "metrics_1000_devices_p95_ms": round(quantile(times, 0.95), 1),
        "metrics_1000_devices_bytes": len(text),
    }


PARTS = {"page": measure_page, "viewers": measure_viewers, "metrics": measure_metrics}


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=SOURCE / "build/dev")
    parser.add_argument("--out", type=pathlib.Path, default=SOURCE / "bench/results/see.json")
    parser.add_argument("--only", choices=sorted(PARTS), help="one part")
    parser.add_argument("--quick", action="store_true", help="a dry run: its figures mean nothing")
    options = parser.parse_args(argv)
    tree = Tree.of_build(options.build)
    figures = {}
    try:
        with first_on_the_processors():
            for name, part in PARTS.items():
                if options.only in (None, name):
                    figures |= part(tree, options.quick)
    except Failure as error:
        print(f"see.py: {error}", file=sys.stderr)
        return 1
    figures["web_conditions"] = {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "load_average": round(os.getloadavg()[0], 1),
        "chromium": subprocess.run(
            ["chromium", "--version"], capture_output=True, text=True, check=True
        ).stdout.split()[1],
        "command": "bench/see.py" + (" --quick" if options.quick else ""),
    }
    kept = json.loads(options.out.read_text()) if options.out.exists() else {}
    write_whole(options.out, json.dumps(kept | figures, indent=2) + "\n")
    print(json.dumps(figures, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
