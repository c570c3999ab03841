"""Why the bubbles of this rank cannot be used: the numbers that are decided here, and when the reason is said.

The set is closed, and its names and sentences are the library's (policy/rank_why): `Library.explain`. What a page shows is judged there, too.
"""

import time
import typing

HOOK_OFF, NOT_ASKED, NO_GROUP, FRAMEWORK_SILENT, FAILED = 2, 3, 4, 5, 6
ENDED, NO_MESSAGES, OTHER_GROUPS, FEW_ITERATIONS, LEARNING = 8, 10, 11, 15, 16

MANY_STEPS = 8  # of an optimizer for each iteration: so many have no training's optimizers together


class Status(typing.NamedTuple):
    """Of this rank, now. `state`: as freeride.state() says. `why`: a name of the closed set of docs/trainers/not-hooked.md, "usable" where
    nothing is in the way. `reason`: the same as a sentence, and what to do."""

    state: str
    why: str
    reason: str


class Patience:
    """When it is time to say why there is no usable bubble: after so many iterations, or so long since there is a default group."""

    ITERATIONS, SECONDS = 50, 60
    EVERY = 64  # calls for a look at the clock

    def __init__(self, clock=time.monotonic):
        self._clock = clock
        self._since = None
        self._calls = 0
        self.iterations = 0  # where none is recognised, the optimizer's steps
        self.over = False  # it was said, or there was a usable bubble

    def begin(self):
        if self._since is None:
            self._since = self._clock()

    def called(self):
        """Whether to look now: not at each call."""
        self._calls += 1
        return not self.over and self._calls % self.EVERY == 0

    def ended(self):
        return self.iterations > self.ITERATIONS or (
            self._since is not None and self._clock() - self._since >= self.SECONDS
        )
