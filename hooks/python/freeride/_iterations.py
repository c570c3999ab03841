"""When an iteration ends, by the pipeline's own messages, where no optimizer's step says so.

A schedule repeats: each iteration has the same messages, in the same order, to and from the same ranks. A rank whose optimizer makes no step in
some iteration ends it with the first message behind a whole repetition. All ranks do so, each by itself and on any host, so that they count the
same iterations.
"""

_SURE = 8  # iterations in a row that steps ended behind the same messages
_MOST_TURNS = 3  # of a step and a guess: then it is no skipped step, but a longer iteration, as with more accumulation


class Period:
    """Of one rank. Told of each message of the pipeline before it is posted, and of each iteration's end. The training's thread."""

    def __init__(self):
        self._count = self._order = 0  # of the present iteration's messages
        self._usual = None  # (count, order) of the last one that a step ended
        self._alike = 0  # iterations in a row that were like it
        self._steps = _MOST_TURNS  # that ended iterations since the last guess
        self._turns = 0
        self.wrong = False  # a guess was: there are none any more

    def before(self, messages):
        """`messages`, each (is a send, rank of the world), are about to be posted together. True: an iteration has ended before them, though no
        step has said so."""
        over = self._alike >= _SURE and not self.wrong and self._usual == (self._count, self._order)
        if over:
            self._turns = self._turns + 1 if self._steps == 1 else 0 if self._steps > 1 else self._turns
            if self._turns >= _MOST_TURNS:
                over, self._alike, self._steps = False, 0, _MOST_TURNS
            else:
                self._steps = self._count = self._order = 0
        for message in messages:
            self._count += 1
            self._order = hash((self._order, message))
        return over

    def step(self):
        """An optimizer has made its step, or the training says that an iteration ends. False: that is the end which was guessed too early, and
        counted then."""
        if self._steps == 0 and self._count < self._usual[0]:
            self.wrong, self._steps = True, _MOST_TURNS
            return False
        now = self._count, self._order
        self._alike = self._alike + 1 if now == self._usual else 1
        self._usual = now
        self._steps += 1
        self._count = self._order = 0
        return True

    def begin_anew(self):
        """What is known is of other iterations: this rank's pipeline is a new one; or other ranks have ended an iteration, and this one ends with
        its first message behind that."""
        self._alike = self._count = self._order = 0
        self._steps = _MOST_TURNS
