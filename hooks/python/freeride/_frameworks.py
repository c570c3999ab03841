"""What frameworks know about their pipeline: its ranks, and so this rank's place. Learned by listening to one function of each, which
is still called exactly as before; one that has gone in another version costs nothing but the knowledge, and the user can give that.
"""

import functools
import sys

from ._pipeline import world_ranks

_SAY_YOURSELF = "tell the pipeline by FREERIDE_GROUP, FREERIDE_STAGE and FREERIDE_STAGES"


def expected():
    """Has the training imported a framework that will tell?"""
    return any(name in sys.modules for name, _ in _LISTENERS)


def listen(imports, wrap, told, say, fail):
    """Calls told(framework, ranks) from now on: a pipeline's world ranks by stage. wrap(owner, name, make) is what replaces the functions;
    what is missing, or reads otherwise in this version, goes to `say`, errors of told() to `fail`."""
    for name, (target, reader) in _LISTENERS:
        imports.after(
            name, lambda module, target=target, reader=reader: _listen_to(module, target, reader, wrap, told, say, fail)
        )


def _listen_to(module, target, reader, wrap, told, say, fail):
    owner = module
    for part in target.split(".")[:-1]:
        owner = getattr(owner, part, None)
    name = target.split(".")[-1]
    if getattr(owner, name, None) is None:
        say(f"this {module.__name__} has no {target}: {_SAY_YOURSELF}")
        return

    def make(original):
        @functools.wraps(original)
        def listening(*args, **kwargs):
            result = original(*args, **kwargs)
            try:
                framework, ranks = reader(module, *args, **kwargs)
            except Exception as error:
                say(
                    f"{target} of this {module.__name__} cannot be read: {type(error).__name__}: {error}; {_SAY_YOURSELF}"
                )
                return result
            try:
                told(framework, ranks)
            except Exception as error:
                fail(error)
            return result

        return listening

    wrap(owner, name, make)


def _ranks_of(group):
    c10d = sys.modules["torch.distributed.distributed_c10d"]
    return world_ranks(c10d, group if group is not None else c10d._get_default_group())


def _of_pipelining(_, stage, *__, **___):
    # Every stage of this rank says the same: the group's ranks in order are the pipeline's devices, also where each holds several stages.
    return "torch.distributed.pipelining", _ranks_of(stage.group)


def _of_deepspeed(_, grid):
    return "DeepSpeed", tuple(grid.pp_group)


def _of_megatron(parallel_state, *_, **__):
    return "Megatron", _ranks_of(parallel_state.get_pipeline_model_parallel_group())


def _of_nanotron(_, context, *__, **___):
    return "nanotron", _ranks_of(context.pp_pg)


def _of_picotron(groups, *_, **__):
    return "picotron", _ranks_of(groups.process_group_manager.pp_group)


_LISTENERS = (
    ("torch.distributed.pipelining.stage", ("_PipelineStageBase.__init__", _of_pipelining)),
    ("deepspeed.runtime.pipe.p2p", ("init_process_groups", _of_deepspeed)),
    ("megatron.core.parallel_state", ("initialize_model_parallel", _of_megatron)),
    ("nanotron.parallel.context", ("ParallelContext.__init__", _of_nanotron)),
    ("picotron.process_group_manager", ("setup_process_group_manager", _of_picotron)),
)
