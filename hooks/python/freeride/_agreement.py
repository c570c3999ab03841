"""Whether the ranks of a training count the same iterations: two that exchange messages compare, on whichever hosts they are.

What they have in common is the number of messages between them. A rank whose iterations are regular tells by training's own store how many had
ended after how many messages with each other rank, and how many messages an iteration has. From then on those know the iteration's number by
counting. A rank that has ended fewer, or none, ends its iterations by that number.

All that asks the store is a thread's of its own, which takes what is there: training waits for none of it. Without the store a rank ends
iterations by its own word alone.
"""

import atexit
import json
import threading
import time

_PREFIX = "freeride/iterations/"  # in training's own store
_SURE = 8  # iterations in a row with as many messages to and from each rank
_LONE = 32  # messages and four iterations' more without an end: then others are asked
_DOUBTS = 3  # answers or iterations in a row that say the same: a change of the schedule is over by then
_MOST_PEERS = 64
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 1, 60  # between two looks into the store


class Rule:
    """What a rank has told: `ended` iterations had ended after `messages` with us, and one has `each`."""

    def __init__(self, ended, messages, each):
        self.ended, self.messages, self.each = ended, messages, each

    def number(self, messages):
        """How many iterations have ended after so many; and how many messages ago the last of them did."""
        more, ago = divmod(messages - self.messages, self.each)
        return self.ended + more, ago

    def nearest(self, messages):
        """The first of these at the end of an iteration, which two ranks may see a message apart."""
        return self.ended + round((messages - self.messages) / self.each)


class Agreement:
    """One rank's part. All but _exchange() belongs to the training's thread. Never raises but for errors of its own."""

    def __init__(self, store, rank):
        self._store, self._rank = store, rank
        self._messages = {}  # rank of the world -> messages exchanged with it
        self._since = 0  # messages since the last iteration's end
        self._last = {}  # the same at the last iteration's end
        self._each = {}  # and in the last iteration
        self._alike = 0  # iterations in a row
        self._ended = 0
        self._told = {}  # what this rank has told: {rank: Rule}
        self._untrue = 0  # iterations in a row in which that was not so
        self._rules = {}  # what others have, of us: {rank: Rule}
        self._answers = 0  # of the store
        self._differs_since = None  # answers when this rank was found to have ended fewer than another, or more
        self.follows = None  # the rank whose iterations are ours
        self._followed = 0  # iterations that ended since
        self.apart = None  # the rank that has ended fewer than we, and goes on so
        self._thread, self._looked_s, self._pause_s = None, None, _SHORTEST_PAUSE_S

    def before(self, messages):
        """`messages`, each (is a send, rank of the world or None), are about to be posted together. How many iterations had ended before
        them, where this rank has ended fewer and follows another; else 0."""
        if self.follows is None or not any(rank == self.follows for _, rank in messages):
            return 0
        rule = self._rules.get(self.follows)
        number, ago = rule.number(self._messages[self.follows]) if rule is not None else (0, 0)
        return number if number > self._ended and ago == 0 else 0

    def posted(self, messages):
        """They are, or about to be."""
        for _, rank in messages:
            if rank is not None:
                self._messages[rank] = self._messages.get(rank, 0) + 1
                self._since += 1
        if self.follows is None and self._since >= _LONE + 4 * sum(self._each.values()):
            self._look(None)
            self._follow(min(self._rules, default=None))

    def ended(self, number):
        """So many iterations have ended, by whatever word."""
        self._since = 0
        each = {rank: count - self._last.get(rank, 0) for rank, count in self._messages.items()}
        alike = each == self._each
        self._alike = self._alike + 1 if alike and number == self._ended + 1 else 1
        self._followed += 1
        if self.follows is not None and not alike and self._followed > 2:  # the first one was not whole
            self.follows = None  # not where a schedule begins: no end is better than a wrong one
        self._each, self._last, self._ended = each, dict(self._messages), number
        tell, regular = None, self._alike >= _SURE
        untrue = any(rule.nearest(self._last[rank]) != number for rank, rule in self._told.items())
        self._untrue = self._untrue + 1 if untrue else 0
        if regular and (untrue or not self._told):
            tell = {rank: Rule(number, self._last[rank], of) for rank, of in each.items() if of > 0}
        elif self._untrue >= _DOUBTS:
            tell = {}
        if regular:
            self._compare()
        if (
            tell is not None
            or self.follows is not None
            or len(self._rules) < len(each)
            or self._differs_since is not None
        ):
            self._look(tell)

    def _follow(self, rank):
        self.follows, self._followed, self._differs_since = rank, 0, None

    def _compare(self):
        fewer = {}  # than it -> by how many
        for rank, rule in self._rules.items():
            by, each = rule.nearest(self._last[rank]) - self._ended, self._each.get(rank, 0)
            # Else the two do not count the same messages.
            if by != 0 and each != 0 and (each % rule.each == 0 or rule.each % each == 0):
                fewer[rank] = by
        if not fewer or self.follows is not None:
            self._differs_since = None
            return
        if self._differs_since is None:
            self._differs_since, self._pause_s = self._answers, _SHORTEST_PAUSE_S
        answers, most = self._answers - self._differs_since, max(fewer, key=fewer.get)
        if answers >= _DOUBTS and fewer[most] > 0:
            self._follow(most)
        elif answers >= 2 * _DOUBTS:  # by now it would follow us
            self.apart = most

    # ---- training's store -------------------------------------------------------------------------------------------------------

    def _look(self, tell):
        """Tells and asks, unless that was done just now."""
        now_s = time.monotonic()
        if self._thread is not None and self._thread.is_alive():
            return
        if tell is None and self._looked_s is not None and now_s - self._looked_s < self._pause_s:
            return
        if self._store is None:
            return
        self._looked_s = now_s
        self._pause_s = _SHORTEST_PAUSE_S if tell is not None else min(2 * self._pause_s, _LONGEST_PAUSE_S)
        if self._thread is None:
            atexit.register(self.stop)
        self._told = self._told if tell is None else tell
        self._untrue = 0
        self._thread = threading.Thread(
            target=self._exchange, args=(tell, sorted(self._messages)[:_MOST_PEERS]), daemon=True
        )
        self._thread.start()

    def stop(self):
        """Asks no more. A thread that is inside the store when the interpreter ends would take the process with it, so this waits for it, for
        two seconds at most."""
        thread, self._store = self._thread, None
        if thread is not None:
            thread.join(2)

    def _exchange(self, tell, peers):
        try:
            store = self._store
            if tell is not None:
                words = {rank: (rule.ended, rule.messages, rule.each) for rank, rule in tell.items()}
                store.set(_PREFIX + str(self._rank), json.dumps(words))
            rules = {}
            for peer in peers:
                # What is there, at once, where a get would wait; "" of who has told nothing so far.
                text = store.compare_set(_PREFIX + str(peer), "", "").decode()
                rule = _rule(json.loads(text).get(str(self._rank))) if text else None
                if rule is not None:
                    rules[peer] = rule
            self._rules = rules
            self._answers += 1
        except Exception:  # a store that has gone, or knows no compare_set
            self._store = None


def _rule(words):
    """None: it makes no sense."""
    if not isinstance(words, list) or len(words) != 3 or not all(isinstance(word, int) for word in words):
        return None
    ended, messages, each = words
    return (
        Rule(ended, messages, each) if 0 <= ended < 1 << 48 and 0 <= messages < 1 << 48 and 0 < each < 1 << 32 else None
    )
