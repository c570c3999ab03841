"""Which messages are the pipeline's, on groups that are none: no process, and no torch."""

import sys
import types
import unittest
import unittest.mock

from freeride import _frameworks, _marks, _pipeline, _torch


class Group:
    def __init__(self, ranks):
        self.ranks = ranks

    def size(self):
        return len(self.ranks)


class C10d:
    """A world of ranks, as torch.distributed.distributed_c10d sees it."""

    get_process_group_ranks = staticmethod(lambda group: group.ranks)

    def __init__(self, size):
        self.world = Group(list(range(size)))

    def _get_default_group(self):
        return self.world


def sources(pipelines, c10d, group):
    """The world ranks whose messages on this group are the pipeline's."""
    verdict = pipelines._judge(c10d, group)
    return {group.ranks[place] for place in range(group.size()) if verdict.sources is None or place in verdict.sources}


class Found(unittest.TestCase):
    def setUp(self):
        self.pipelines, self.c10d = _pipeline.Pipelines(), C10d(8)

    def test_told_nothing_it_talks_on_the_default_group(self):
        self.assertEqual(len(sources(self.pipelines, self.c10d, self.c10d.world)), 8)
        self.assertEqual(sources(self.pipelines, self.c10d, Group([0, 1])), set())

    def test_a_pipelines_messages_on_groups_that_the_framework_never_names(self):
        """As torch 2.15 makes them for each edge of a pipeline, and for each direction."""
        self.pipelines.tell((1, 3, 5, 7))
        for edge in ([3, 5], [5, 3], [1, 3]):
            self.assertEqual(sources(self.pipelines, self.c10d, Group(edge)), set(edge))
        ring = Group([2, 3])  # context parallelism beside it: the same calls, another stage's rank is at no end
        self.assertEqual(sources(self.pipelines, self.c10d, ring), {3})
        self.assertEqual(sources(self.pipelines, self.c10d, self.c10d.world), {1, 3, 5, 7})

    def test_after_the_default_group_is_made_anew_its_messages_are_still_the_pipelines(self):
        self.pipelines.tell((0, 4))
        self.c10d.world = Group(list(range(8)))
        self.assertEqual(sources(self.pipelines, self.c10d, self.c10d.world), {0, 4})

    def test_messages_of_no_pipeline_are_noticed(self):
        ring = Group([0, 1])
        self.pipelines._verdicts[ring] = self.pipelines._judge(self.c10d, ring)
        self.assertFalse(self.pipelines.passed_over)
        self.assertFalse(self.pipelines.receives(ring, 1))
        self.assertTrue(self.pipelines.passed_over)


class Batch(unittest.TestCase):
    def test_a_batch_on_another_group_where_torch_tells_only_the_rank_in_the_world(self):
        """Up to torch 2.5 a P2POp has no group_peer."""
        c10d, group = C10d(8), Group([4, 5, 6, 7])
        irecv = types.SimpleNamespace(__name__="irecv")
        old = types.SimpleNamespace(op=irecv, group=group, peer=6, tensor=None)
        new = types.SimpleNamespace(op=irecv, group=group, peer=6, group_peer=2, tensor=None)
        world = types.SimpleNamespace(op=irecv, group=None, peer=6, tensor=None)
        found = _torch._messages_of_batch(c10d, ([old, new, world],), {})
        self.assertEqual([(where, peer) for _, where, peer, _ in found], [(group, 2), (group, 2), (c10d.world, 6)])


class Told(unittest.TestCase):
    def test_a_framework_that_reads_otherwise_in_another_version_costs_the_knowledge_alone(self):
        class Stage:
            def __init__(self):
                self.made = True

        module = types.ModuleType("a.framework")
        module.Stage = Stage
        said, failed, told = [], [], []

        def reader(_, stage):
            return "A framework", stage.of_another_name

        def wrap(owner, name, make):
            setattr(owner, name, make(getattr(owner, name)))

        _frameworks._listen_to(
            module, "Stage.__init__", reader, wrap, lambda *what: told.append(what), said.append, failed.append
        )
        self.assertTrue(Stage().made)
        self.assertEqual((failed, told), ([], []))
        self.assertIn("Stage.__init__ of this a.framework cannot be read: AttributeError", said[0])

    def test_frameworks_that_name_their_pipeline_by_a_group(self):
        """Rank 5's pipeline is 1, 5: as nanotron and picotron keep it, whose stages are not the ranks of the world."""
        pipeline = types.SimpleNamespace(pp_group=Group([1, 5]), pp_pg=Group([1, 5]))
        nanotron, picotron = types.ModuleType("nanotron.parallel.context"), types.ModuleType("picotron")

        class ParallelContext:
            def __init__(self, *_, **__):
                self.pp_pg = pipeline.pp_pg

        def setup_process_group_manager(*_, **__):
            picotron.process_group_manager = pipeline

        nanotron.ParallelContext = ParallelContext
        picotron.setup_process_group_manager = setup_process_group_manager
        modules = {"nanotron.parallel.context": nanotron, "picotron.process_group_manager": picotron}
        told, said, failed = [], [], []
        imports = types.SimpleNamespace(after=lambda name, then: then(modules[name]) if name in modules else None)
        _frameworks.listen(
            imports,
            lambda owner, name, make: setattr(owner, name, make(getattr(owner, name))),
            lambda *what: told.append(what),
            said.append,
            failed.append,
        )
        with unittest.mock.patch.dict(sys.modules, {_torch.C10D: C10d(8)}):
            nanotron.ParallelContext(1, 2, 4)
            picotron.setup_process_group_manager(tp_size=1, cp_size=1, pp_size=2, dp_size=4)
        self.assertEqual((told, said, failed), ([("nanotron", (1, 5)), ("picotron", (1, 5))], [], []))


class Wrapped(unittest.TestCase):
    def test_a_context_that_cannot_be_entered_or_left_reaches_no_call(self):
        class Context:
            def __init__(self, *broken):
                self.broken = broken

            def __enter__(self):
                self.do("enter")

            def __exit__(self, *_):
                self.do("exit")

            def do(self, what):
                if what in self.broken:
                    raise RuntimeError(what)

        def raises(posted):
            raise RuntimeError("where")

        for where, expected in (
            (raises, ["where"]),
            (lambda posted: Context("enter"), ["enter"]),
            (lambda posted: Context("exit"), ["exit"]),
            (lambda posted: Context(), []),
        ):
            self.assertEqual(self.errors_of_a_send(where), expected)

    def errors_of_a_send(self, where):
        failed = []
        interception = _torch.Interception(lambda error: failed.append(str(error)))
        interception._marker = _marks.Marker()
        interception._marker.MEETS = ("send",)
        interception._marker.before_messages = lambda messages, in_batch: messages
        interception._marker.where = where
        send = interception._messages(None, "send", lambda group, tensors, peer: "a work")
        self.assertEqual(send(None, [None], 1), "a work")
        return failed


if __name__ == "__main__":
    unittest.main()
