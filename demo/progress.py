"""Live progress of the run: one line, rewritten in place on a terminal, else a new one every few seconds."""

import collections
import shutil
import sys
import time

RECENT = 20  # iterations that a stage's shares are taken from


def line(events, losses):
    """What there is to say now."""
    text = f"iteration {len(losses):>4}  loss {losses[-1]['loss']:.3f}" if losses else "training starts"
    stages = collections.defaultdict(lambda: collections.deque(maxlen=RECENT))
    steps, measures = {}, None
    # A worker also publishes the progress of profiles, which are no tasks of the user's.
    tasks = {event["task"] for topic, event in events if topic.startswith("task.state/")}
    for topic, event in events:
        if topic.startswith("training.iteration/"):
            stages[event["stage"]].append(event)
        elif topic.startswith(("task.progress/", "task.state/")) and event["task"] in tasks:
            steps[event["task"]] = max(event["counters"]["steps"], steps.get(event["task"], 0))
        elif topic.startswith("training.measures/"):
            measures = event
    for stage, recent in sorted(stages.items()):
        time_ns = sum(i["end_ns"] - i["begin_ns"] for i in recent)
        offered = [i for i in recent if not i["holdout"]]
        offered_ns, harvested_ns = sum(i["bubble_ns"] for i in offered), sum(i["harvested_ns"] for i in offered)
        bubbles = 100 * sum(i["bubble_ns"] for i in recent) / time_ns if time_ns else 0
        text += f"  | stage {stage}: bubbles {bubbles:.0f} %"
        text += f", harvested {100 * harvested_ns / offered_ns:.0f} %" if offered_ns else ", baseline"
    for name, count in sorted(steps.items()):
        text += f"  | {name} {count} steps"
    if measures and measures["measured"]:
        half = (measures["time_increase_ci95_high_pct"] - measures["time_increase_ci95_low_pct"]) / 2
        text += f"  | I {measures['time_increase_pct']:+.1f} ± {half:.1f} %"
    return text


class Progress:
    """Prints progress lines. Not thread-safe."""

    def __init__(self, out=sys.stdout):
        self._out, self._in_place, self._next = out, out.isatty(), 0.0
        self._open = False  # an unfinished line is on the terminal

    def show(self, text):
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + (0.5 if self._in_place else 5.0)
        if self._in_place:
            self._out.write("\r\x1b[K" + text[: shutil.get_terminal_size().columns - 1])
            self._open = True
        else:
            self._out.write(text + "\n")
        self._out.flush()

    def say(self, text):
        """A line that stays."""
        self.end()
        self._out.write(text + "\n")
        self._out.flush()

    def end(self):
        if self._open:
            self._out.write("\n")
            self._open = False
