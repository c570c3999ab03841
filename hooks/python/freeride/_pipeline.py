"""Which calls are the pipeline's: by who is at the other end, by the process group, and by what the framework or the user says.

Told nothing, receives on the default group are the pipeline's. A framework that is known (_frameworks.py) tells which ranks are one pipeline;
then receives from these ranks are its own, on whichever group, since frameworks make groups of their own for single edges, and make groups
anew. Receives from other ranks are none of it: a context-parallel ring uses the same calls. What the user says (FREERIDE_GROUP,
attach(group=…)) goes before both.
"""

import weakref

# A collective's payload up to which waiting for it is idling: moving so much takes as long as waking a side task. What is larger is work
# of its own (the gradients of tied embeddings), which a side task would disturb.
SMALL_BYTES = 64 << 10


class _Verdict:
    """Of one group: is a receive from this rank of it the pipeline's (None: from any), and does it span stages, so that its collectives
    wait for other stages."""

    __slots__ = ("sources", "any_source", "spans")

    def __init__(self, sources, spans, any_source=True):
        self.sources, self.any_source, self.spans = sources, any_source, spans


_NONE = _Verdict(frozenset(), False, any_source=False)


def parse_rule(text):
    """("auto",), ("world",), ("any",), ("size", n) or ("ranks", (…)) from FREERIDE_GROUP's text."""
    text = (text or "auto").strip()
    if text in ("auto", "world", "any"):
        return (text,)
    if text.startswith("size="):
        return ("size", int(text[5:]))
    if text.startswith("ranks="):
        return ("ranks", tuple(int(rank) for rank in text[6:].split(",")))
    raise ValueError(f'FREERIDE_GROUP="{text}" is none of auto, world, any, size=N, ranks=A,B,…')


def world_ranks(c10d, group):
    """The group's members as ranks of the world, by their rank in the group."""
    if group is c10d._get_default_group():
        return tuple(range(group.size()))
    if hasattr(c10d, "get_process_group_ranks"):
        return tuple(c10d.get_process_group_ranks(group))
    return tuple(c10d.get_global_rank(group, rank) for rank in range(group.size()))  # torch before 2


class Pipelines:
    """The rule, what frameworks have told, and the verdict on each process group."""

    def __init__(self):
        self._rule = ("auto",)
        self._given = None  # the user's process group, for ("given",)
        self._told = []  # world ranks of pipelines that this rank is in, from frameworks
        self._verdicts = weakref.WeakKeyDictionary()  # process group -> _Verdict
        self._ranks = weakref.WeakKeyDictionary()  # process group -> its members as ranks of the world
        self.passed_over = 0  # messages that were met and are no pipeline's

    def set_rule(self, rule, group=None):
        self._rule, self._given = rule, group
        self._verdicts.clear()

    def automatic(self):
        return self._rule[0] == "auto"

    def tell(self, ranks):
        """A framework's pipeline, of which this rank is one, by its ranks of the world."""
        if frozenset(ranks) not in self._told:
            self._told.append(frozenset(ranks))
            self._verdicts.clear()

    def forget(self):
        """What was told was of ranks of another default group."""
        self._told.clear()
        self._verdicts.clear()

    def known(self):
        """Has anybody told which messages are the pipeline's? Else it is a guess."""
        return bool(self._told) or not self.automatic()

    def receives(self, group, source):
        """Is a receive on `group` from its rank `source` (None: from any) the pipeline's?"""
        verdict = self._verdict_of(group)
        if source is None:
            found = verdict.any_source
        else:
            found = verdict.sources is None or source in verdict.sources
        self.passed_over += not found
        return found

    def ranks_of(self, group):
        """The group's members as ranks of the world, by their rank in the group; looked up once."""
        ranks = self._ranks.get(group)
        if ranks is None:
            import torch.distributed.distributed_c10d as c10d

            ranks = self._ranks[group] = world_ranks(c10d, group)
        return ranks

    def rank_of(self, group, peer):
        """The group's rank `peer` as a rank of the world; None: any, or one that the group does not have, which the call itself refuses."""
        ranks = self.ranks_of(group)
        return ranks[peer] if peer is not None and 0 <= peer < len(ranks) else None

    def spans_stages(self, group):
        """Do collectives on `group` wait for other stages, and is that certain?"""
        return self._verdict_of(group).spans

    def awaited_in_collective(self, group, args, kwargs):
        """Of a broadcast, all-reduce, reduce or barrier on `group`, given as to ProcessGroup's method: (its tensors, its options, whom of the group
        this rank waits for in it). None: it is no wait for other stages, but work, or somebody else's."""
        if not self.spans_stages(group):
            return None
        given = args[0] if args else kwargs.get("tensors", kwargs.get("tensor", ()))
        tensors = [
            item for item in (given if isinstance(given, (list, tuple)) else (given,)) if hasattr(item, "element_size")
        ]
        if sum(tensor.numel() * tensor.element_size() for tensor in tensors) > SMALL_BYTES:
            return None
        options, rank = args[1] if len(args) > 1 else kwargs.get("opts"), group.rank()
        others = tuple(other for other in range(group.size()) if other != rank)
        if type(options).__name__ == "BroadcastOptions":
            others = () if options.rootRank == rank else (options.rootRank,)
        return tensors, options, others

    def _verdict_of(self, group):
        verdict = self._verdicts.get(group)
        if verdict is None:
            import torch.distributed.distributed_c10d as c10d

            verdict = self._verdicts[group] = self._judge(c10d, group)
        return verdict

    def _judge(self, c10d, group):
        everything = _Verdict(None, spans=True)
        kind = self._rule[0]
        if kind == "given":
            return everything if group is self._given else _NONE
        if kind == "world":
            return everything if group is c10d._get_default_group() else _NONE
        if kind == "ranks":
            return everything if world_ranks(c10d, group) == self._rule[1] else _NONE
        if kind == "any" or (kind == "size" and group.size() == self._rule[1]):
            return _Verdict(None, spans=False)  # may as well be a data-parallel group
        if kind == "size":
            return _NONE
        if not self._told:
            return _Verdict(None, spans=False) if group is c10d._get_default_group() else _NONE
        members = world_ranks(c10d, group)
        insides = [{rank for rank, of_world in enumerate(members) if of_world in ranks} for ranks in self._told]
        sources = frozenset().union(*insides)
        spans = any(len(inside) > 1 for inside in insides)
        return _Verdict(sources, spans, any_source=len(sources) == len(members))
