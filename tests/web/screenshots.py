#!/usr/bin/python3
"""Pictures of the page beside a real training, and of a feeder's 64 lanes: docs/images/web-*.png (make screenshots)."""

import argparse
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))

import browser
import feeder
from PIL import Image

from rig.processors import first_on_the_processors
from rig.system import System
from rig.tree import SOURCE, Tree


def keep(driver, path):
    """As a small file: a page has few colours."""
    driver.save_screenshot(str(path))
    Image.open(path).convert("RGB").quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)
    print(path)


def take(driver, address, path, width, height, dark=False, whole=False):
    browser.show(driver, width, height, dark)
    driver.get(address)
    browser.wait_page(driver, "window.freeride.first_bubble_ms !== null", "the first bubble is drawn")
    browser.wait_page(driver, "document.querySelectorAll('#task-table tbody tr').length > 0", "side tasks are listed")
    # A lane's width of bubbles.
    driver.execute_script("window.began = performance.now()")
    browser.wait_page(driver, "performance.now() - window.began > 7000", "seven seconds")
    if whole:
        browser.show(driver, width, driver.execute_script("return document.documentElement.scrollHeight"), dark)
        driver.execute_script("window.began = performance.now()")
        browser.wait_page(driver, "performance.now() - window.began > 1000", "a second")
    keep(driver, path)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, default=SOURCE / "build/dev")
    parser.add_argument("--out", type=pathlib.Path, default=SOURCE / "docs/images")
    parser.add_argument("--only", choices=["training", "lanes"])
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    tree = Tree.of_build(options.build)
    driver = browser.chromium()
    try:
        if options.only != "lanes":
            with System(tree, job="gpt") as system:
                system.start_manager(*browser.MANAGER)
                address = browser.start_web(system)  # before the rest, so that it has events to show
                browser.start_training(system)
                browser.start_batch(system, items=4000)
                take(driver, address, options.out / "web-light.png", 1280, 900, whole=True)
                take(driver, address, options.out / "web-dark.png", 1280, 900, dark=True, whole=True)
                take(driver, address, options.out / "web-narrow.png", 400, 900)
        if options.only != "training":
            with System(tree) as system:
                system.start_manager()
                with feeder.Feeder(system.run_dir, ranks=64, rate=6400):
                    address = browser.start_web(system)
                    take(driver, address, options.out / "web-64-lanes.png", 1280, 900)
            with System(tree) as system:
                system.start_manager()
                with feeder.Feeder(system.run_dir, ranks=1000, rate=0):
                    address = browser.start_web(system)
                    browser.show(driver, 1280, 900)
                    driver.get(address)
                    browser.wait_page(
                        driver,
                        "document.querySelectorAll('#labels div').length > 15"
                        " && document.querySelectorAll('#device-table tbody tr').length > 100"
                        " && document.querySelectorAll('.card').length > 0",
                        "a thousand are summed up",
                    )
                    driver.execute_script("window.began = performance.now()")
                    browser.wait_page(driver, "performance.now() - window.began > 3000", "three seconds")
                    keep(driver, options.out / "web-1000-ranks.png")
    finally:
        driver.quit()


if __name__ == "__main__":
    with first_on_the_processors():
        sys.exit(main())
