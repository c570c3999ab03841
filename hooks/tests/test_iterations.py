"""Which iterations end by the pipeline's own messages: schedules as lists, no process, and no torch."""

import itertools
import unittest
import unittest.mock

from freeride import _agreement, _iterations

TO, FROM = (True, 1), (False, 1)


def gpipe(count):
    return [TO] * count + [FROM] * count


def last_of_1f1b(count):
    return [FROM, TO] * count  # a whole one begins with each shorter one


def train(period, iterations):
    """Each (messages, whether the optimizer makes its step): at how many messages, from the first one on, iterations ended."""
    ends, posted = [], 0
    for messages, steps in iterations:
        for message in messages:
            if period.before([message]):
                ends.append(posted)
            posted += 1
        if steps and period.step():
            ends.append(posted)
    return ends


class Skipped(unittest.TestCase):
    def setUp(self):
        self.period = _iterations.Period()

    def test_a_pipeline_that_is_made_anew_has_no_iterations_of_the_one_before(self):
        before, after = [(last_of_1f1b(2), True)] * 10, [(last_of_1f1b(4), True)] * 3
        train(self.period, before)
        self.period.begin_anew()
        self.assertEqual(train(self.period, after), [8, 16, 24])

    def test_a_rank_that_skips_steps_counts_the_same_iterations(self):
        for schedule in (gpipe, last_of_1f1b):
            steps = [True] * 10 + [False, True, True, False, False, False, True, True]
            ends = train(_iterations.Period(), [(schedule(4), step) for step in steps])
            self.assertEqual(ends, [8 * (i + 1) for i in range(len(steps))])

    def test_a_stage_that_is_frozen_later_goes_on_counting(self):
        ends = train(self.period, [(gpipe(4), number < 10) for number in range(40)])
        self.assertEqual(ends, [8 * (i + 1) for i in range(39)])  # the last one would end with the next message

    def test_without_a_regular_schedule_only_steps_end_iterations(self):
        counts = [4, 6] * 10
        steps = [number != 15 for number in range(20)]
        ends = train(self.period, [(last_of_1f1b(count), step) for count, step in zip(counts, steps)])
        so_far = list(itertools.accumulate(2 * count for count in counts))
        self.assertEqual(ends, [end for end, step in zip(so_far, steps) if step])

    def test_before_it_is_sure_only_steps_end_iterations(self):
        self.assertEqual(train(self.period, [(gpipe(4), number % 4 == 3) for number in range(12)]), [32, 64, 96])

    def test_an_evaluation_between_steps_ends_none(self):
        rounds = [(gpipe(4), True)] * 10 + [([FROM] * 4, False), (gpipe(4), True)] * 3
        self.assertEqual(train(self.period, rounds), [8 * (i + 1) for i in range(10)] + [92, 104, 116])

    def test_a_longer_schedule_that_begins_like_the_usual_one_is_counted_once(self):
        rounds = [(last_of_1f1b(4), True)] * 10 + [(last_of_1f1b(6), True)] * 3
        # Of the first of them the end is guessed too early, and its own one is none: so many as steps.
        self.assertEqual(train(self.period, rounds), [8 * (i + 1) for i in range(11)] + [104, 116])
        self.assertTrue(self.period.wrong)

    def test_more_accumulation_is_learned_as_a_longer_iteration(self):
        for schedule in (gpipe, last_of_1f1b):
            period = _iterations.Period()
            train(period, [(schedule(4), number % 2 == 1) for number in range(40)])
            for _ in range(2):
                ends = train(period, [(schedule(4), number % 4 == 3) for number in range(80)])
            self.assertEqual(ends, [32 * (i + 1) for i in range(20)])
            self.assertFalse(period.wrong)

    def test_an_iteration_that_other_ranks_have_ended_teaches_nothing(self):
        for _ in range(20):
            for message in gpipe(4):
                self.assertFalse(self.period.before([message]))
            self.period.before([TO])
            self.period.begin_anew()


class Store:
    """Training's own, as far as it is asked."""

    def __init__(self):
        self.kept = {}

    def set(self, key, text):
        self.kept[key] = text.encode()

    def compare_set(self, key, expected, _):
        assert expected == ""
        return self.kept.get(key, b"")


class Agreed(unittest.TestCase):
    """Ranks that exchange messages with the next one, each with its hook's part of an iteration's end."""

    def setUp(self):
        self.store = Store()
        for name in ("_SHORTEST_PAUSE_S", "_LONGEST_PAUSE_S"):
            patch = unittest.mock.patch.object(_agreement, name, 0)
            patch.start()
            self.addCleanup(patch.stop)

    def ranks(self, count):
        self.agreements = [_agreement.Agreement(self.store, rank) for rank in range(count)]
        self.ended = [0] * count
        self.places = [set() for _ in range(count)]  # of the schedule, at which another rank's word ended iterations
        return self.agreements

    def end(self, rank, number, follow=False):
        agreement = self.agreements[rank]
        if agreement.follows is None or follow:
            self.ended[rank] = max(self.ended[rank] + 1, number)
            agreement.ended(self.ended[rank])
            self.answered(agreement)

    @staticmethod
    def answered(agreement):
        if agreement._thread is not None:
            agreement._thread.join()

    def iterate(self, iterations, steps, count=4):
        """`steps`: for each rank whether its optimizer makes its step, by the iteration."""
        for iteration in range(iterations):
            for number in range(count):
                for rank, agreement in enumerate(self.agreements):
                    for peer in (rank - 1, rank + 1):
                        if not 0 <= peer < len(self.agreements):
                            continue
                        messages = [(True, peer), (False, peer)]
                        told = agreement.before(messages)
                        if told:
                            self.places[rank].add((number, peer))
                            self.end(rank, told, follow=True)
                        agreement.posted(messages)
                        self.answered(agreement)
            for rank, does in enumerate(steps):
                if does(iteration):
                    self.end(rank, 0)

    def test_a_stage_without_an_optimizer_ends_iterations_with_its_neighbour(self):
        always, never = (lambda _: True), (lambda _: False)
        for steps in ((always, never), (never, always), (always, never, never, always), (never, never, always)):
            self.store.kept.clear()
            self.ranks(len(steps))
            self.iterate(60, steps)
            # The last one ends with the first message after it.
            self.assertEqual(self.ended, [60 if does is always else 59 for does in steps])
            self.assertEqual([len(places) for places in self.places], [int(does is never) for does in steps])

    def test_a_rank_that_steps_in_every_second_iteration_follows_the_one_that_steps_in_each(self):
        one, other = self.ranks(2)
        self.iterate(60, (lambda _: True, lambda iteration: iteration % 2 == 1))
        self.assertEqual((one.follows, other.follows), (None, 0))
        self.assertEqual(self.ended, [60, 59])

    def test_ranks_that_step_alike_follow_nobody_whatever_the_schedule_does(self):
        for counts in ([4], [4, 6], [4, 4, 6, 6, 6], [4] * 12 + [6] * 12, [4] * 10 + [8] * 11, [8] * 10 + [4] * 3):
            self.store.kept.clear()
            ranks = self.ranks(3)
            for iteration in range(60):
                self.iterate(1, (lambda _: True,) * 3, counts[iteration % len(counts)])
                self.assertEqual([rank.follows for rank in ranks] + [rank.apart for rank in ranks], [None] * 6)
            self.assertEqual(self.ended, [60] * 3)

    def test_a_rank_that_steps_twice_an_iteration_where_the_other_cannot_follow_is_apart(self):
        one, other = self.ranks(2)
        with unittest.mock.patch.object(other, "_compare"):  # as in an earlier version
            for _ in range(60):
                self.iterate(1, (lambda _: True, lambda _: False), 2)
                self.iterate(1, (lambda _: True, lambda _: True), 2)
        self.assertEqual((one.follows, one.apart, other.follows, other.apart), (None, 1, None, None))

    def test_what_makes_no_sense_in_the_store_is_no_rule(self):
        self.store.set = lambda *_: None
        words = ("3", "[1, 2]", "[1, 2, 0]", "[-1, 2, 3]", '["1", 2, 3]', "[1e300, 2, 3]")
        for text in ("[]", "{", "7", *(f'{{"0": {word}}}' for word in words)):
            one, _ = self.ranks(2)
            self.store.kept["freeride/iterations/1"] = text.encode()
            self.iterate(20, (lambda _: True, lambda _: False))
            self.assertEqual((one.follows, one.apart, one._rules), (None, None, {}))

    def test_a_store_that_has_gone_is_asked_no_more(self):
        one, _ = self.ranks(2)
        self.store.compare_set = None
        self.iterate(40, (lambda _: False, lambda _: True))
        self.assertEqual((one.follows, one._store, self.ended), (None, None, [0, 40]))


if __name__ == "__main__":
    unittest.main()
