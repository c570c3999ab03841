"""A headless Chromium for tests, screenshots and benchmarks, and a real system with freeride-web beside it."""

import contextlib
import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))

from rig.processes import Failure, free_port, until


def chromium(width=1280, height=900, dark=False):
    """A driver; quit() ends it. Debian's Chromium alone: nothing is fetched."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for flag in (
        "--headless=new",
        "--no-sandbox",  # tests run as root, for whom Chromium has none
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--force-color-profile=srgb",
        f"--window-size={width},{height}",
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(service=Service("/usr/bin/chromedriver"), options=options)
    driver.set_page_load_timeout(120)
    show(driver, width, height, dark)
    return driver


def show(driver, width, height, dark=False):
    """From now on pages have this many CSS pixels, and the light or dark scheme."""
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
    )
    scheme = "dark" if dark else "light"
    driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    )


def complaints(driver):
    """What the console has of errors and violations of the policy since the last call."""
    return [entry["message"] for entry in driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]


def figures(driver):
    """What the page says of itself (page.js): bubbles heard and drawn, times of frames."""
    return driver.execute_script("return window.freeride")


def wait_page(driver, condition, what, seconds=120):
    return until(lambda: driver.execute_script(f"return {condition}"), what, seconds)


def start_web(system, *flags, name="web"):
    """freeride-web beside `system`, at a free port; returns its address once it answers."""
    import urllib.error
    import urllib.request

    port = free_port()
    address = f"http://127.0.0.1:{port}/"
    process = system.start(name, [system.tree.program("freeride-web"), "--listen", f"127.0.0.1:{port}", *flags])

    def answers():
        if process.poll() is not None:
            raise Failure(f"freeride-web ended with {process.returncode}; {system.last_words(name)}")
        with contextlib.suppress(urllib.error.URLError, ConnectionError):
            return urllib.request.urlopen(address + "metrics", timeout=30).status == 200
        return False

    until(answers, "freeride-web answers")
    return address


MANAGER = ("--baseline-pct", "20", "--baseline-block-ms", "1500", "--budget-pct", "20")


def start_training(system, stages=2):
    """A real training whose bubbles two side tasks use, beside a manager."""
    (system.root / "data").mkdir()
    for stage in range(stages):
        system.start_worker(f"cpu-{stage}", "--data", system.root / "data")
    system.wait_workers(stages)
    training = {"dim": 64, "layers": stages, "seq": 64, "micro_batches": 4}
    system.start_training(stages=stages, seconds=900, **training)
    system.wait_workers(stages, trained=True)
    for stage in range(stages):
        system.load(system.tree.plugin("pagerank.so"), f"pagerank-{stage}", "--stage", stage, params=["scale=12"])
        system.wait_steps(f"pagerank-{stage}", 3)


COUNT_WORDS = """
import time

def process(items):
    time.sleep(0.001 * len(items))
    return [len(item.split()) for item in items]
"""


def start_batch(system, name="count-words", items=1_000_000):
    """A batch beside start_training(), long enough to be looked at."""
    data = system.root / "data"
    (data / f"{name}.py").write_text(COUNT_WORDS)
    (data / "lines.txt").write_text("".join(f"line {number} of a text\n" for number in range(items)))
    words = ["--input", data / "lines.txt", "--output", data / f"{name}.jsonl", "--detach"]
    system.ok("batch", data / f"{name}.py", *words)
