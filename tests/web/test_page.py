"""The page in a real browser, beside a real manager, workers, training and side tasks; and its metrics in a real
Prometheus."""

import json
import os
import pathlib
import subprocess
import sys
import urllib.parse
import urllib.request

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.path.append(str(HERE.parent))
WEB = HERE.parents[1] / "web"

import browser

from rig.phases import PhaseRank
from rig.processes import free_port
from rig.testing import System, until

# From a copy: reading the page's own canvas over and over is something that Chromium warns of.
COLOURS = """
const c = document.getElementById("picture"), copy = new OffscreenCanvas(c.width, c.height);
const context = copy.getContext("2d", { willReadFrequently: true });
context.drawImage(c, 0, 0);
const d = context.getImageData(0, 0, c.width, c.height).data;
const seen = new Set();
for (let i = 0; i < d.length; i += 4) seen.add((d[i] << 16) + (d[i + 1] << 8) + d[i + 2]);
return seen.size;
"""
PHASE = "parseInt(getComputedStyle(document.documentElement).getPropertyValue('--phase').trim().slice(1), 16)"
WIDER_THAN_THE_WINDOW = "document.documentElement.scrollWidth > window.innerWidth"


def get(address):
    with urllib.request.urlopen(address, timeout=60) as answer:
        return answer.read().decode()


@pytest.fixture(scope="module")
def site():
    """(system, address) of a running training with side tasks."""
    with System() as system:
        system.start_manager(*browser.MANAGER)
        browser.start_training(system)
        yield system, browser.start_web(system)


@pytest.fixture(scope="module")
def driver():
    driver = browser.chromium()
    yield driver
    driver.quit()


@pytest.fixture
def page(site, driver):
    browser.show(driver, 1280, 900)
    driver.get(site[1])
    browser.wait_page(driver, "window.freeride.first_bubble_ms !== null", "the first bubble is drawn")
    yield driver
    assert browser.complaints(driver) == []


def test_bubbles_tasks_devices_and_measures_are_shown(site, page):
    system, _ = site
    browser.wait_page(page, "document.querySelectorAll('#task-table tbody tr').length === 2", "both tasks are listed")
    browser.wait_page(page, "window.freeride.bubbles > 40", "bubbles come")
    for words in ("pagerank-0", "pagerank-1", "stage 0", "stage 1", "cpu-0", "cpu-1", "live", "Harvested", "Budget"):
        until(lambda w=words: w in page.find_element("tag name", "body").text, f"the page says {words!r}")
    # Compute, bubbles, side tasks, iterations: more than one colour each way.
    browser.wait_page(page, f"(() => {{ {COLOURS} }})() > 5", "lanes have their colours")
    steps = "Number(document.querySelector('#task-table tbody td[data-name=steps]').textContent)"
    before = page.execute_script(f"return {steps}")
    browser.wait_page(page, f"!({steps} === {before})", "steps are counted on")
    assert system.task("pagerank-0")["verdict"]["kind"] == ""


def test_an_idle_phase_is_shown_by_its_name_while_it_goes_on_and_when_it_is_over(driver):
    from selenium.webdriver.common.action_chains import ActionChains

    has_phase = COLOURS.replace("seen.size", f"seen.has({PHASE})")
    coloured = f"(() => {{ {has_phase} }})()"
    with System() as system:
        system.start_manager()
        system.start_worker("cpu-0", "--sandbox", "none")
        browser.show(driver, 1280, 900)
        driver.get(browser.start_web(system))
        for _ in range(3):
            driver.find_element("id", "wider").click()  # a minute, so that it does not leave the picture
        with PhaseRank(system) as rank:
            rank.begin("rollout")
            label = "document.getElementById('labels').textContent"
            browser.wait_page(driver, f"{label}.includes('rollout ')", "its lane says in which phase the rank is")
            browser.wait_page(driver, coloured, "the lane is in the phase's colour")
            rank.end()
            browser.wait_page(driver, f"!{label}.includes('rollout')", "its end is shown")
            browser.wait_page(
                driver, "document.getElementById('jobs').textContent.includes('Phase rollout')", "the sum"
            )
            browser.wait_page(driver, coloured, "its bubble has the phase's colour")
            driver.find_element("id", "pause").click()
            picture = driver.find_element("id", "picture")
            width = picture.size["width"]

            def found():
                for x in range(-width // 2 + 5, width // 2, 20):
                    ActionChains(driver).move_to_element_with_offset(picture, x, 0).perform()
                    if "phase rollout of" in driver.find_element("id", "hover").text:
                        return True
                return False

            until(found, "the pointer finds its name")
    driver.get("about:blank")
    browser.complaints(driver)  # a refused connection is one


def test_dark_narrow_and_by_keyboard(site, page):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    def back():
        return page.execute_script("return getComputedStyle(document.body).backgroundColor")

    light = back()
    browser.show(page, 1280, 900, dark=True)
    browser.wait_page(page, f"getComputedStyle(document.body).backgroundColor !== {light!r}", "the dark scheme")
    browser.show(page, 400, 800)
    browser.wait_page(page, f"!({WIDER_THAN_THE_WINDOW})", "400 pixels are wide enough")
    until(lambda: page.find_element("id", "task-table").is_displayed(), "side tasks are shown")
    browser.show(page, 1280, 900)

    def keys(*words):
        ActionChains(page).send_keys(*words).perform()

    page.find_element("id", "picture").click()
    span = page.find_element("id", "span").text
    keys("-")
    assert page.find_element("id", "span").text != span
    keys("+")
    assert page.find_element("id", "span").text == span
    pressed = "document.getElementById('pause').getAttribute('aria-pressed')"
    keys(Keys.SPACE)
    assert page.execute_script(f"return {pressed}") == "true"
    keys(Keys.ARROW_LEFT)
    keys(Keys.HOME)
    assert page.execute_script(f"return {pressed}") == "false"
    # Tab comes to everything that can be operated, and a task's commands open by Enter.
    browser.wait_page(page, "document.querySelectorAll('#task-table tbody tr').length === 2", "both tasks are listed")
    seen = set()
    page.execute_script("document.querySelector('.skip').focus()")
    for _ in range(30):
        keys(Keys.TAB)
        label = page.execute_script(
            "return document.activeElement.getAttribute('aria-label') || document.activeElement.textContent"
        )
        seen.add(label)
        if label == "Commands for pagerank-0":
            break
    assert {"Pause", "Zoom in", "Zoom out"} <= seen
    keys(Keys.ENTER)
    browser.wait_page(page, "document.getElementById('commands').open", "the commands are open")
    assert "freeride-ctl stop pagerank-0" in page.find_element("id", "commands").text
    keys(Keys.ESCAPE)
    browser.wait_page(page, "!document.getElementById('commands').open", "they are closed")


def test_the_page_comes_back_with_freeride_web_and_says_when_the_manager_is_gone(site, page):
    system, _ = site
    port = urllib.parse.urlsplit(page.current_url).port
    system.end("web")
    browser.wait_page(page, "document.getElementById('link').className === 'bad'", "the page says so")
    system.start("web", [system.tree.program("freeride-web"), "--listen", f"127.0.0.1:{port}"])
    browser.wait_page(page, "document.getElementById('link').className === ''", "the page is live again", 180)
    system.wait_iterations(3)  # training has noticed nothing
    browser.complaints(page)  # a refused connection is one


def test_real_prometheus_scrapes_it(site, tmp_path):
    _, address = site
    text = get(address + "metrics")
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=120, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    with urllib.request.urlopen(
        urllib.request.Request(address + "metrics", headers={"Accept": "application/openmetrics-text;version=1.0.0"}),
        timeout=60,
    ) as answer:
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
        assert answer.read().endswith(b"\n# EOF\n")
    # Prometheus asks for OpenMetrics, and refuses a target whose answer is not what it says.
    port = free_port()
    (tmp_path / "prometheus.yml").write_text(
        json.dumps(
            {
                "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                "rule_files": [str(WEB / "prometheus/alerts.yml")],
                "scrape_configs": [
                    {
                        "job_name": "freeride",
                        "honor_labels": True,
                        "static_configs": [{"targets": [urllib.parse.urlsplit(address).netloc]}],
                    }
                ],
            }
        )
    )
    base = f"http://127.0.0.1:{port}"
    server = subprocess.Popen(
        [
            "prometheus",
            f"--config.file={tmp_path}/prometheus.yml",
            f"--storage.tsdb.path={tmp_path}/data",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stderr=subprocess.DEVNULL,
    )

    def query(expression):
        try:
            answer = json.loads(get(f"{base}/api/v1/query?query={urllib.parse.quote(expression)}"))
        except OSError:
            assert server.poll() is None, "Prometheus ended"
            return []
        return answer["data"]["result"]

    try:
        found = until(lambda: query("rate(freeride_bubble_seconds_total[30s]) > 0"), "bubble time grows in Prometheus")
        assert {series["metric"]["job"] for series in found} == {"gpt"}
        assert until(lambda: query('freeride_task_steps_total{task="pagerank-0"} > 0'), "the task's steps")
        assert query("up == 1")
        rules = json.loads(get(f"{base}/api/v1/rules"))["data"]["groups"][0]["rules"]
        assert len(rules) >= 5 and all(rule["health"] in ("ok", "unknown") for rule in rules)
        # Every query of the dashboard is one.
        board = json.loads((WEB / "grafana/freeride.json").read_text())
        for panel in board["panels"]:
            for target in panel["targets"]:
                query(target["expr"].replace("$job", "gpt").replace("$__rate_interval", "1m"))
    finally:
        server.terminate()
        server.wait(60)


def test_a_batch_is_shown_with_its_progress_until_it_is_removed(site, page):
    system, address = site
    assert not page.find_element("id", "batches").is_displayed()
    browser.start_batch(system)
    done = "(document.querySelector('#batch-table progress') || {}).value"
    browser.wait_page(page, f"{done} > 0", "items are done")
    before = page.execute_script(f"return {done}")
    browser.wait_page(page, f"{done} > {before}", "more items are done")
    shown = page.find_element("id", "batch-table").text
    assert "count-words" in shown and "running" in shown and "of 1.0 M" in shown, shown
    told = system.ok("top", "--count", 1)["batches"]
    assert [batch["batch"] for batch in told] == ["count-words"] and told[0]["items"] == 1_000_000
    assert 'freeride_batch_items{batch="count-words"} 1000000' in get(address + "metrics")
    system.ok("batch", "rm", "count-words")
    browser.wait_page(page, "document.getElementById('batches').hidden", "it is forgotten")


def test_a_recording_is_shown_as_if_live_without_a_manager(driver):
    import feeder

    with System() as system:
        manager = system.start_manager()
        recorder = system.start("recorder", [system.tree.program("freeride-recorder"), "--keep-free", "0"])
        folder = system.state_dir / "recordings"

        def lines(topic):
            done = subprocess.run(
                [system.tree.program("freeride-ctl"), "recording", "view", "--topic", topic, "--format", "json"],
                env=system.env,
                capture_output=True,
                text=True,
                check=False,
            )
            return len(done.stdout.splitlines())

        with feeder.Feeder(system.run_dir, ranks=4, rate=100):
            until(lambda: lines("training.state") >= 4, "the training's ranks are recorded")
            before = lines("bubble.end")  # at most so many are of before their rank was known, and have no lane
            until(lambda: lines("bubble.end") > before + 1500, "a recording of some seconds")
        for process in (recorder, manager):
            process.terminate()
            process.wait(60)
        recorded = lines("bubble.end")
        address = browser.start_web(system, "--replay", folder, "--replay-speed", "4", name="replay")
        browser.show(driver, 1280, 900)
        driver.get(address)
        browser.wait_page(driver, "window.freeride.first_bubble_ms !== null", "a recorded bubble is drawn")
        for words in ("recording of ", "4 times as fast", "task-0", "GPU-0003", "synthetic"):
            until(lambda w=words: w in driver.find_element("tag name", "body").text, f"the page says {words!r}")
        browser.wait_page(driver, f"(() => {{ {COLOURS} }})() > 4", "lanes have their colours")
        link = "document.getElementById('link').textContent"
        browser.wait_page(driver, f"{link}.endsWith(', its end')", "the recording comes to its end")
        shown = browser.figures(driver)["bubbles"]
        assert recorded - before <= shown <= recorded
        assert browser.complaints(driver) == []

        late = browser.start_web(system, "--replay", folder, "--replay-skip-s", "5", name="late")
        driver.get(late)
        browser.wait_page(driver, "window.freeride.first_bubble_ms !== null", "a later bubble is drawn")
        driver.get("about:blank")

        def refused(*flags):
            done = subprocess.run(
                [system.tree.program("freeride-web"), "--listen", "127.0.0.1:0", *flags],
                env=system.env,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            return done.returncode != 0 and done.stderr

        assert "nothing happens in" in refused("--replay", folder, "--replay-skip-s", "100000")
        assert "cannot read the recording" in refused("--replay", system.root / "none.mcap")
        assert "--replay" in refused("--replay-speed", "2")


def test_lanes_of_ranks_that_are_gone_end_with_their_last_event(driver):
    import feeder

    edge = COLOURS.replace("getImageData(0, 0, c.width,", "getImageData(c.width - 20, 0, 20,")
    assert edge != COLOURS
    with System() as system:
        system.start_manager()
        browser.show(driver, 1280, 900)
        driver.get(browser.start_web(system, name="leaving"))
        for _ in range(3):
            driver.find_element("id", "wider").click()  # a minute: what they did stays in sight
        with feeder.Feeder(system.run_dir, ranks=2, rate=100, leaves=True):
            browser.wait_page(driver, f"(() => {{ {edge} }})() > 1", "what training does is drawn at the right")
        browser.wait_page(
            driver, "document.getElementById('labels').textContent.includes('gone')", "the ranks are gone"
        )
        browser.wait_page(driver, f"(() => {{ {edge} }})() === 1", "nothing is drawn of them any more")
        assert driver.execute_script(COLOURS) > 4, "what they did is still there"
        assert browser.complaints(driver) == []


def test_bad_input_is_one_line(tmp_path):
    program = pathlib.Path(os.environ["FREERIDE_BUILD_DIR"]) / "bin/freeride-web"
    (tmp_path / "token").write_text("0123456789abcdef\n")
    (tmp_path / "token").chmod(0o644)
    for flags, code, words in (
        (["--listen", "0.0.0.0:7473"], 2, "token"),
        (["--listen", "localhost:1"], 2, "address"),
        (["--listen", "0.0.0.0:7473", "--token-file", tmp_path / "none"], 2, "openssl rand"),
        (["--listen", "0.0.0.0:7473", "--token-file", tmp_path / "token"], 2, "chmod 600"),
        (["--max-viewers", "0"], 2, "max-viewers"),
    ):
        done = subprocess.run(
            [program, "--run-dir", tmp_path, *flags], capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == code, done.stderr
        assert words in done.stderr and len(done.stderr.strip().splitlines()) == 1
