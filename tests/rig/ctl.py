"""freeride-ctl, called as a user would, with its answers as JSON."""

import json
import subprocess

from .processes import PATIENCE_S, Failure


class Answer:
    """What a call did."""

    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    @property
    def json(self):
        return json.loads(self.out or "{}")

    def __repr__(self):
        return f"exit {self.code}\n{self.out}\n{self.err}"


class Ctl:
    """`env` names the system that is meant (FREERIDE_RUN_DIR)."""

    def __init__(self, program="freeride-ctl", env=None):
        self.program, self.env = str(program), env

    def ask(self, *words, timeout=5):
        """`timeout`: how long the program waits for a manager, s."""
        words = [str(word) for word in words]
        # What follows in a submission is the program's; elsewhere it may be freeride-ctl itself, behind another program.
        end = words.index("--") if words[:1] == ["submit"] and "--" in words else len(words)
        try:
            done = subprocess.run(
                [self.program, *words[:end], "--format", "json", "--timeout", str(timeout), *words[end:]],
                capture_output=True,
                text=True,
                env=self.env,
                timeout=PATIENCE_S + timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise Failure(f"freeride-ctl {' '.join(words)}: no end within {PATIENCE_S + timeout} s") from None
        return Answer(done.returncode, done.stdout, done.stderr)

    def __call__(self, *words, timeout=20):
        answer = self.ask(*words, timeout=timeout)
        if answer.code != 0:
            raise Failure(
                f"freeride-ctl {' '.join(map(str, words))}: exit {answer.code}: {(answer.err or answer.out).strip()}"
            )
        return answer.json

    def states(self):
        """Of all tasks by name, in one call: looking must not take the processors from what is looked at."""
        return {task["load"]["name"]: task["state"] for task in self("tasks")["tasks"]}
