"""The hook of this process: all that it knows, in one object, and the rule that no error of ours reaches the training.

Here it is decided when and as whom a rank attaches. The calls of torch are met in _torch.py, which tells a marker (_marks.py, _cuda.py);
which calls are a pipeline's is told by _pipeline.py and _frameworks.py. None of these knows this module.
"""

import contextlib
import ctypes
import functools
import os
import sys
import threading
import weakref

from . import _cuda, _frameworks, _hosts
from ._agreement import Agreement
from ._cudart import Cudart
from ._found import Found
from ._idle import Phases
from ._imports import Imports
from ._iterations import Period
from ._job import default_job
from ._library import CUDA, DISABLED, Config, Library, RemoteHold, RemoteReport, StreamCounters
from ._marks import HostMarker
from ._pipeline import Pipelines, parse_rule
from ._processes import InChild, processes
from ._status import (
    ENDED,
    FAILED,
    FEW_ITERATIONS,
    FRAMEWORK_SILENT,
    HOOK_OFF,
    LEARNING,
    MANY_STEPS,
    NO_GROUP,
    NO_MESSAGES,
    NOT_ASKED,
    OTHER_GROUPS,
    Patience,
    Status,
)
from ._torch import C10D, Interception

_MOST_WAITS = 1024  # of an iteration, FREERIDE_MAX_WAITS
_NO_END = (
    f"no iteration has ended for {_MOST_WAITS} waits, so that later ones are no bubbles. If the optimizer of this rank makes no step that the "
    "hook sees, as with a stage that has nothing to train, call freeride.iteration_end() on this rank at the end of each iteration"
)
_BY_OTHERS = (
    "the optimizer of this rank makes no step in some iterations, or in all: they end with other ranks' iterations"
)
_BY_PERIOD = "the optimizer of this rank has made no step in an iteration: such ones end where the pipeline's messages begin again"
_BY_RANK = "the optimizer of this rank makes no step in some iterations, or in all: they end with those of rank %d"
_APART = (
    "this rank has ended more iterations than rank %d, with which it exchanges messages: their optimizers do not step alike. Call "
    "freeride.iteration_end() on all ranks at the end of each iteration"
)
_GUESSED_WRONGLY = (
    "an iteration was taken for one without an optimizer's step, and had one: from now on only steps end iterations. If this rank makes none in "
    "some, call freeride.iteration_end() on all ranks at the end of each"
)
_MOST_MOVES = 8  # of a rank from one pipeline's place to another's: each is an attach, in training's thread
# What says rank and number of ranks where torch does not: torchrun, Slurm, Open MPI, MPICH and Intel's MPI
_WORLD = (
    ("RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)
# What says a rank's place on its host, best first: torch's own launcher, Slurm, Open MPI, Intel's MPI
_LOCAL_RANK = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")


def off():
    return os.environ.get("FREERIDE_HOOK") == "0"


def _local_rank(rank):
    return next((os.environ[name] for name in _LOCAL_RANK if os.environ.get(name)), None) or str(rank)


def _world_of_environment():
    """This rank and their number, as a launcher says; else the only one."""
    for rank, size in _WORLD:
        rank, size = os.environ.get(rank, ""), os.environ.get(size, "")
        if rank.isdecimal() and size.isdecimal() and int(rank) < int(size) < 1 << 20:
            return int(rank), int(size)
    return 0, 1


def check(arguments):
    """Raises for arguments that make no sense, while attach() can still say so."""
    group = arguments["group"]
    if group is None or isinstance(group, str):
        parse_rule(group or os.environ.get("FREERIDE_GROUP"))
    if arguments["iterations"] not in ("optimizer", "manual"):
        raise ValueError('iterations is "optimizer" or "manual"')


def number(name, given, default, least=0):
    value = given if given is not None else os.environ.get(name)
    if value is None or value == "":
        return default
    value = int(value)
    if not least <= value < 1 << 20:
        raise ValueError(f"{name}={value} is out of range")
    return value


class Hook:
    """What the training's own thread runs in a wait is `begin`, `end` and `iteration_end`, which never raise."""

    def __init__(self):
        self.library = None  # freeride/hook.h, loaded with the first attach
        self.handle = None  # the library's handle; None: not attached
        self.waits = 0  # marked since the last iteration's end
        self.marker = None  # told of the training's calls
        self.cudart = Cudart()
        self.pipelines = Pipelines()
        self._period = Period()
        self._agreement = None  # with the ranks that this one exchanges messages with
        self.at_iteration_end = None  # observe's
        self.gpu = _cuda.Gpu()
        self._lock = threading.RLock()
        self._pid = 0  # of the process that attached: a forked child is none
        self._arguments = None  # of attach(), while waiting for init_process_group
        self._given = None  # the same, for a default group that comes after this one
        self._world = None  # weak reference to the default group that this rank has attached in
        self._moves = 0  # from one place to another, in one default group
        self._attached = 0  # times
        self._job = None  # what it was called then
        self._disabled = False  # by the user, when a place was given up
        self._off_for_good = False  # an error of ours: the hook stays off
        self._armed = False  # these are the environment's: the script has called attach() not yet
        # Armed by an idle phase: this rank is no pipeline's until a message or a framework says so.
        self._for_phases = False
        self.alone = False  # attached for idle phases, as the only stage; a pipeline's rank attaches anew
        self._alone_gpu = None  # the number of the GPU whose streams mark then
        self._child = 0  # this process' number, where a rank has started it
        self._detached = False  # by the script: phases attach no more
        self.thread = None  # that trains: it has made an optimizer's step
        self.phases = Phases(self)
        self._place = None  # stage, stages, replica that we attached with, where nobody gave them
        self._postponed = False  # the attach: a framework will tell this rank's place in its pipeline
        self._explicit_iterations = False
        self._found = False  # a wait of the pipeline's was marked
        self._met_messages = False  # messages of a pipeline's were posted
        self._steps_count = False  # attach(iterations="optimizer")
        self._steps_end = False  # optimizers' steps have ended iterations without any wait, and go on to
        self.world = None  # this rank and their number, of the newest default group that there was in this process
        self.placed = False  # this rank's stage was given or told; else it is a guess
        self.iterations = 0  # that have ended
        self.steps = 0  # of optimizers
        self.sources = set()  # world ranks that messages of the pipeline came from; for who observes
        self._failed = False
        self._patience = Patience()
        self._said = set()
        self._torch = Interception(self.fail)
        self._imports = Imports(self.fail)
        self.found = Found(self, self._torch.wrap, self._torch.attempt)
        self._here = threading.local()
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self):
        self._lock = threading.RLock()  # another thread of the parent's may have it, which is not here to let it go

    # ---- what is said, and what becomes of errors ---------------------------------------------------------------------------------

    def say(self, text):
        """One line on stderr, once."""
        if text in self._said or len(self._said) > 16:
            return
        self._said.add(text)
        try:
            sys.stderr.write(f"freeride: {text}\n")
        except (OSError, ValueError, AttributeError):
            pass

    def fail(self, error):
        """After an error of our own: the hook goes off for good, and says so once."""
        self._off_for_good = processes.quiet = True
        try:
            if self.is_attached():
                self.library.fail(self.handle, f"{type(error).__name__}: {error}".replace("\n", " ").encode())
            else:
                self._failed = True
                self.say(f"not attached: {type(error).__name__}: {error}; training goes on without")
        except Exception:  # nothing left to try
            pass

    def inform(self, what, function, *arguments):
        """Calls what only informs people. Its error costs that information, which is said, and switches nothing off; then it returns None."""
        try:
            return function(*arguments)
        except Exception as error:
            self.say(f"{what} is not known: {type(error).__name__}: {error}".replace("\n", " "))
            return None

    def is_attached(self):
        return self.handle is not None and self._pid == os.getpid()

    # ---- attaching ----------------------------------------------------------------------------------------------------------------

    def attach(self, **arguments):
        if off():
            return False
        try:
            with self._lock:
                self._detached = False
                if self.is_attached() and not self.alone:
                    return True
                if self._for_phases:
                    self._begin_anew()
                if self._arguments is not None:
                    if self._armed:  # what the script says goes before what was armed for it
                        check(arguments)
                        self._arguments, self._armed = arguments, False
                    return True
                above = processes.rank_above()
                if above is not None:
                    if not self._by_multiprocessing():  # of a loader's workers each would say it
                        self.say(f"not attached: process {above}, which is a rank, has started this one")
                    return False
                self._load()
                check(arguments)
                self._arguments = arguments
                import torch.distributed

                if not torch.distributed.is_available():
                    raise RuntimeError("this torch has no torch.distributed")
                import torch.distributed.distributed_c10d as c10d

                self._arm(c10d)
                return True
        except Exception as error:
            self._arguments = None
            self.fail(error)
            return False

    def _begin_anew(self):
        """What a phase has armed gives way to the script's own attach()."""
        self._for_phases = self._postponed = False
        self._end_alone()
        self._stop_marking()
        self._arguments = self._given = self._world = self.marker = None

    def arm(self, for_phases=False):
        """For freeride.run: attach with the environment's settings, without importing torch before the script does. for_phases: an idle phase
        was begun, and nothing else says that this rank is a pipeline's."""
        if self._arguments is not None or self.is_attached():
            return  # the script was first
        try:
            if processes.rank_above() is not None:
                processes.quiet = True
                return
            self._load()
            unset = dict.fromkeys(("job", "device", "stage", "stages", "replica", "replicas", "group"))
            self._arguments, self._armed = dict(unset, iterations="optimizer"), True
            self._for_phases = for_phases
            check(self._arguments)
            self._imports.after(C10D, self._arm)
            self._imports.after("multiprocessing.spawn", self._arm_spawned)
        except Exception as error:
            self._arguments = None
            self.fail(error)

    def _arm_spawned(self, spawn):
        """What this process spawns before it is a rank may be ranks, and is armed, too. A forked child is by itself."""

        def make(original):
            @functools.wraps(original)
            def get_preparation_data(*args, **kwargs):
                data = original(*args, **kwargs)
                if self._arguments is not None and not processes.is_rank:
                    data["freeride"] = InChild()
                return data

            return get_preparation_data

        self._torch.wrap(spawn, "get_preparation_data", make)

    @staticmethod
    def _by_multiprocessing():
        module = sys.modules.get("multiprocessing.process")
        return module is not None and module.parent_process() is not None

    def _load(self):
        if self.library is None:
            self.library = Library()
        self.cudart.preload(self.library)
        self.found.install(self._imports)

    def _arm(self, c10d):
        """Listens, and attaches as soon as there is a default group."""
        self._torch.after_init(c10d, self._attach_to)
        self._torch.look(functools.partial(self._look_for_group, c10d))
        _frameworks.listen(self._imports, self._torch.wrap, self._told, self.say, self.fail)
        if c10d.is_initialized():
            self._attach_to(c10d)

    def _look_for_group(self, c10d):
        """At a message: is there a default group that was made by a function whose name was bound before it was wrapped?"""
        if self._is_new(c10d):
            self._attach_to(c10d)

    def _is_new(self, c10d):
        return c10d.is_initialized() and (self._world is None or self._world() is not c10d._get_default_group())

    def _attach_to(self, c10d):
        """There is a default group: attaches, or, where a framework will tell this rank's place, gets ready to."""
        if not self._is_new(c10d):
            return
        first, self._world = self._world is None, weakref.ref(c10d._get_default_group())
        if processes.rank_above() is not None:  # forked from a rank, say to write checkpoints
            self._arguments = None
            return
        processes.becomes_rank()
        if not first:  # other ranks, or another backend
            self.pipelines.forget()
            self._moves = 0
            if not self._leave():
                return
        self._end_alone()  # as whom it had attached, nobody had said; the next phase attaches anew
        self.world = c10d.get_rank(), c10d.get_world_size()
        self._patience.begin()
        given = self._arguments
        if given is None:
            return
        self._given, group = given, given["group"]
        if group is None or isinstance(group, str):
            self.pipelines.set_rule(parse_rule(group or os.environ.get("FREERIDE_GROUP")))
            group = None
        elif first:
            self.pipelines.set_rule(("given",), group)
        else:
            raise RuntimeError("the process group given to attach() went with its default group: detach() and attach()")
        self._steps_count = given["iterations"] == "optimizer"
        if self._steps_count:
            self._torch.after_steps(self._step_made)
        self._meet(c10d)
        placed = given["stage"] is not None or os.environ.get("FREERIDE_STAGE")
        self._postponed = self.pipelines.automatic() and not placed and (self._for_phases or _frameworks.expected())
        if not self._postponed:
            self._attach_as(c10d, group=group)
        else:
            self.marker.attach_later(functools.partial(self._attach_as, c10d))  # should the framework tell nothing

    def _meet(self, c10d):
        """Of this group's calls a marker is told."""
        if _cuda.wanted(c10d):
            self.marker = _cuda.StreamMarker(self, self.pipelines, self.gpu)
        else:
            self.marker = HostMarker(self, self.pipelines, observed=self.at_iteration_end is not None)
            carrier = _cuda.backend(c10d)
            if carrier not in ("", "gloo"):
                self.say(
                    f"torch's backend for GPUs, {carrier}, is not known to this hook: waits that only a GPU has are not marked"
                )
        self._torch.tell(c10d, self.marker)

    def _leave(self):
        """Gives up the place that this rank has, for another one. False: the hook stays off."""
        if self._off_for_good:
            return False
        handle, self.handle = self.handle, None
        self._stop_marking()
        self._period = Period()
        if handle is not None:
            self._disabled = self.library.state(handle) == DISABLED
            self._detach(handle)
        self.marker, self._postponed, self.waits = None, False, 0
        self._arguments = self._arguments or self._given
        return True

    def _detach(self, handle):
        if self.at_iteration_end is not None:  # the last look at its page
            self.handle = handle
            self.inform("what observe shows of this rank", self.at_iteration_end)
            self.handle = None
        self.alone = False
        self.library.detach(handle)
        self.phases.forget()

    def _end_alone(self):
        """This rank, attached for idle phases alone, is to attach as what it is."""
        if self.alone:
            handle, self.handle = self.handle, None
            self._disabled = self.library.state(handle) == DISABLED
            self._detach(handle)

    def _stop_marking(self):
        """Waits for what is inside training's store, for two seconds at most."""
        if self.marker is not None:
            self.marker.stop()
        if self._agreement is not None:
            self._agreement.stop()
            self._agreement = None

    def _attach_as(self, c10d, group=None, framework=None, ranks=None):
        self._postponed = False
        if self.marker.attach_later(functools.partial(self._attach_as, c10d, group, framework, ranks)):
            return
        rank, size, place = c10d.get_rank(group), c10d.get_world_size(group), {}
        if rank < 0:
            raise ValueError("this rank is not in the group given to attach()")
        if ranks is not None:
            place = _place(ranks, rank, size)
        torch = sys.modules["torch"]
        if self.marker.STREAMS:
            backend, place["cuda_rank"] = _cuda.backend(c10d) or "nccl", c10d.get_rank()
        else:
            backend = self.inform("torch's backend", c10d.get_backend, c10d._get_default_group())
        self._attach_now(
            rank, size, f"torch {torch.__version__} {backend}" + (f", {framework}" if framework else ""), **place
        )

    def pipeline_runs(self):
        """A message of the pipeline's was posted: if its framework has told nothing so far, it will not."""
        if self._postponed:
            self._attach_as(sys.modules[C10D])

    def _told(self, framework, ranks):
        """A framework has told this rank's pipeline."""
        c10d = sys.modules[C10D]
        if not c10d.is_initialized() or c10d.get_rank() not in ranks:
            return
        self.pipelines.tell(ranks)
        self._period.begin_anew()
        if self._postponed or (self.marker is not None and self.marker.waiting()):
            self._attach_as(c10d, framework=framework, ranks=ranks)
        elif self.pipelines.automatic():
            place = _place(ranks, c10d.get_rank(), c10d.get_world_size())
            if self._is_elsewhere(**place):
                self._move(c10d, framework, ranks)
            else:
                self.placed = True
                self._say_placed()

    def _say_placed(self):
        """Writes on the page whether this rank's stage is a guess, for whoever shows it."""
        from . import pages

        page = self.page()
        if page is not None:
            page.flags = 0 if self.placed else pages.GUESSED

    def _move(self, c10d, framework, ranks):
        """This rank has attached by a guess, at a message that came before the pipeline was made, or in a pipeline of another shape. All ranks
        come to this at one point of the script, so that what one has sent before it the other has received before it."""
        if self._moves == _MOST_MOVES:
            self.say(
                f"this rank's place in {framework}'s pipelines has changed {_MOST_MOVES} times: it is kept from here on"
            )
            return
        self._moves += 1
        if self._leave():
            self._meet(c10d)
            self._attach_as(c10d, framework=framework, ranks=ranks)

    def _is_elsewhere(self, stage, stages, replica, **_):
        """Has this rank attached with a place that was guessed, and wrongly?"""
        return self.handle is not None and self._place is not None and self._place != (stage, stages, replica)

    def _attach_now(self, rank, world, framework, stage=None, stages=None, replica=None, replicas=None, cuda_rank=None):
        """Makes the handle; called once torch.distributed knows rank and size of the pipeline's group, or a framework this rank's place. What
        the user says goes before that. cuda_rank: streams of the current CUDA context mark; the rank in the world."""
        with self._lock:
            self._end_alone()
            if self.is_attached() or self._arguments is None:
                return
            given, self._arguments = self._arguments, None
            self._for_phases = False
            c10d = sys.modules[C10D]
            self._job = given["job"] or os.environ.get("FREERIDE_JOB") or default_job(c10d, self._job)
            config = self._config(
                given, rank, world, framework, stage, stages, replica, replicas, cuda_rank is not None
            )
            config.rank = c10d.get_rank()  # RANK may be a pod's
            guessed = given["stage"] is None and not os.environ.get("FREERIDE_STAGE")
            self._place = (config.stage, config.stages, config.replica) if guessed else None
            self.placed = not guessed or stage is not None or bool(given["stages"] or os.environ.get("FREERIDE_STAGES"))
            self._make_handle(config)
            if self.handle is not None and self.pipelines.passed_over:
                self.library.note(self.handle, OTHER_GROUPS)
            if self.handle is not None:
                self._agreement = self.inform(
                    "how many iterations other ranks count", lambda: Agreement(self._store(c10d), c10d.get_rank())
                )
            if cuda_rank is not None and self.handle is not None:
                self.cudart.serve(self.library, self.handle)
                self.cudart.follow(self.library, self.handle)
                if _hosts.wanted() and not self._attached:
                    self._hold_hosts(cuda_rank)
                elif _hosts.wanted():  # what training's store says of the others' sockets may be of before
                    self.say("receives from other hosts are not held any more: this rank has attached anew")
            self._attached += 1
            if self._disabled:
                self.disable("as before")

    def _config(self, given, rank, world, framework, stage, stages, replica, replicas, streams):
        """What the library is told of this rank. streams: of a CUDA context mark."""
        local = _local_rank(rank)
        stages = number("FREERIDE_STAGES", given["stages"], stages or world, 1)
        config = Config()
        config.job = self._job.encode()
        device = given["device"] or os.environ.get("FREERIDE_DEVICE")
        if streams:
            config.flags = CUDA
            config.device = device.encode() if device else None  # the library knows the context's
        else:
            config.device = (device or f"cpu-{local}").encode()
        config.framework = framework.encode()
        config.rank = rank
        config.stages = stages
        config.stage = number("FREERIDE_STAGE", given["stage"], rank % stages if stage is None else stage)
        config.replicas = number("FREERIDE_REPLICAS", given["replicas"], replicas or max(1, world // stages), 1)
        guess = min(rank // stages, config.replicas - 1) if replica is None else replica
        config.replica = number("FREERIDE_REPLICA", given["replica"], guess)
        config.local_rank = int(local)
        return config

    def _make_handle(self, config):
        self._pid = os.getpid()
        self.handle = self.library.attach(ctypes.byref(config))  # says by itself why, if not
        self._failed = self.handle is None
        self._say_placed()

    # ---- idle phases --------------------------------------------------------------------------------------------------------------

    def handle_for_phases(self, name, quiet=False):
        """The handle, made now for this phase, if nothing else has attached so far; None: the phase is not marked. quiet: and if it is not
        plain why, nothing is said. May raise."""
        if self.handle is not None:
            return self.handle if self._pid == os.getpid() else None
        if off() or self._failed or self._off_for_good or self._detached or self._is_child(quiet):
            return None
        with self._lock:
            if self._arguments is None:
                self.arm(for_phases=True)
            if self.handle is None and self._arguments is not None:
                self._attach_alone(name, quiet)
            return self.handle

    def _is_child(self, quiet):
        """Was this process forked from one that has attached, or started by a rank? Then that one marks."""
        pid = os.getpid()
        if self._pid not in (0, pid) or self._child == pid:
            return True
        above = processes.rank_above()
        if above is None:
            return False
        self._child = pid
        if not (quiet or self._by_multiprocessing()):
            self.say(f"idle phases of this process are not marked: process {above}, which is a rank, has started it")
        return True

    def _attach_alone(self, name, quiet):
        """Nothing says that there is a pipeline: attaches as the only stage. The arguments are kept, for when something does."""
        c10d, given = sys.modules.get(C10D), self._arguments
        ready = c10d is not None and getattr(c10d, "is_initialized", bool)()
        rank, world = (c10d.get_rank(), c10d.get_world_size()) if ready else _world_of_environment()
        named = given["device"] or os.environ.get("FREERIDE_DEVICE") or ""
        gpu = None if named.startswith("cpu-") else self.gpu.current()
        if gpu is None and not named and self.gpu.expected():
            if not quiet:
                self.say(
                    f'phase "{name}" is not marked: this process has not used its GPU through torch so far. A training on CPUs, or '
                    "with another framework, names its device in FREERIDE_DEVICE"
                )
            return
        self._job = (
            given["job"]
            or os.environ.get("FREERIDE_JOB")
            or default_job(c10d if ready else None, self._job, world == 1)
        )
        config = self._config(given, rank, world, _framework(), None, 1, None, None, gpu is not None)
        self._place, self.placed = None, True  # for as long as there is no other stage
        with self.gpu.context(gpu) if gpu is not None else contextlib.nullcontext():
            self._make_handle(config)
        if self.handle is None:
            return
        self.alone, self._alone_gpu = True, gpu
        self._here.gpu = gpu
        self.world = self.world or (rank, world)
        processes.becomes_rank()
        if gpu is not None:
            self.cudart.serve(self.library, self.handle)
        if self._disabled:
            self.disable("as before")
        self._steps_count = given["iterations"] == "optimizer"

    @contextlib.contextmanager
    def on_gpu_of_phases(self):
        """Training's stream there; None where the host marks."""
        if self.alone:
            streams, gpu = self._alone_gpu is not None, self._alone_gpu
        else:
            streams, gpu = self.marker is not None and self.marker.STREAMS, self.marker and self.marker.device()
        if not streams:
            yield None
        elif getattr(self._here, "gpu", None) == gpu == self.gpu.current():
            yield self.gpu.stream(gpu)
        else:  # another thread, or training is at another GPU: the driver needs the context
            with self.gpu.context(gpu):
                yield self.gpu.stream(gpu)

    def phase_ended(self):
        if self.at_iteration_end is not None:
            self.inform("what observe shows of this phase", self.at_iteration_end)

    def _store(self, c10d):
        """Training's own. What was told there before a rank attached anew is of other iterations."""
        store = c10d._get_default_store()
        return c10d.PrefixStore(f"freeride/again/{self._attached}", store) if self._attached else store

    def _hold_hosts(self, rank):
        """Receives from other hosts are to be held. Without a socket they are as ever."""
        port = self.library.remote_open(self.handle, number("FREERIDE_HINT_PORT", None, 0))
        if port:
            hints = os.environ.get("FREERIDE_HINTS") != "0"
            store = sys.modules[C10D]._get_default_store()
            self.marker.hold_hosts(_hosts.Hosts(store, rank, port if hints else 0))

    def detach(self):
        try:
            with self._lock:
                handle, self.handle = self.handle, None
                self._detached = True
                self._for_phases = False
                self._stop_marking()
                self._arguments, self.marker, self._postponed = None, None, False
                self._given, self._world, self._job = None, None, None
                self._disabled = self._off_for_good = False
                self.found.put_back()
                self._torch.put_back()
                self._imports.forget()
                if handle is not None:
                    self._detach(handle)
        except Exception as error:
            self.fail(error)

    # ---- marks --------------------------------------------------------------------------------------------------------------------

    def begin(self):
        """A wait begins. Returns whether end() must be called."""
        handle = self.handle
        if handle is None:
            return False
        try:
            self.waits += 1
            self.library.mark_begin(handle)
            if self._patience.called():
                self._look()
            return True
        except Exception as error:
            self.fail(error)
            return False

    def end(self):
        try:
            self.library.mark_end(self.handle)
        except Exception as error:
            self.fail(error)

    def before_messages(self, messages, others_ended=False):
        """Messages of the pipeline's are about to be posted together, each (is a send, rank of the world or None). others_ended: other ranks
        have ended an iteration before them. Ends one, if need be."""
        self._met_messages = True
        if self.handle is None:
            return
        self.phases.training_goes_on("a message of the pipeline's was posted")
        if others_ended:
            self.iteration_end(said_by=_BY_OTHERS)
        agreement = self._agreement
        if self._period.before(messages) and (agreement is None or agreement.follows is None):
            self.iteration_end(said_by=_BY_PERIOD)
        if agreement is not None:
            count = agreement.before(messages)
            if count:
                self.iteration_end(said_by=_BY_RANK % agreement.follows, count=count)
            elif agreement.apart is not None:
                self._agreement = None
                self.disable(_APART % agreement.apart)
            agreement.posted(messages)
        if self.waits >= _MOST_WAITS:
            self.say(_NO_END)

    def see_steps(self):
        """A phase was begun: an optimizer's step ends one, whatever ends iterations."""
        self._imports.after("torch.optim.optimizer", lambda _: self._torch.after_steps(self._step_made))

    def _step_made(self):
        """An optimizer has made its step."""
        if self._steps_count:
            return self.iteration_end()
        try:
            self.phases.step()
        except Exception as error:
            self.fail(error)

    def iteration_end(self, explicit=False, said_by=None, count=0):
        """An optimizer's step; the training's own word (`explicit`); or, where both are missing, what says it instead (_BY_...), and that at
        least `count` have ended then."""
        try:
            step = not explicit and said_by is None
            if step:
                self.thread = threading.get_ident()
                self.phases.step()
            self.steps += step
            if not step or self.waits > 0 or self.iterations == 0:
                self._patience.iterations += 1
            if said_by is None and self._agreement is not None and self._agreement.follows is not None:
                return
            if said_by is not None:
                self.say(said_by)
            elif explicit:
                self._explicit_iterations = True
            elif self._explicit_iterations:
                return
            if self.waits == 0:
                if self.pipelines.passed_over and not self._found and not self._patience.over:
                    self.inform("why no bubble of this rank can be used", self._say_why)
                if step and not self._step_ends_iteration_without_waits():
                    return  # a second optimizer's step in the same iteration
                self._steps_end = self._steps_end or step
            if said_by is None and not self._period.step():
                self.say(_GUESSED_WRONGLY)
                return
            if said_by not in (None, _BY_PERIOD):
                self._period.begin_anew()
            self._found = self._found or self.waits > 0
            self.waits = 0
            if self.handle is None:
                return
            self.iterations += 1
            ended = self._end_iteration_alone() if self.alone else self.marker.iteration_end(self.handle, count)
            if ended and self._agreement is not None:
                self._agreement.ended(ended)
            if self.at_iteration_end is not None:
                self.inform("what observe shows of this iteration", self.at_iteration_end)
        except Exception as error:
            self.fail(error)
        finally:
            self._try_look()

    def _step_ends_iteration_without_waits(self):
        """Where there is no pipeline, and nothing but phases that were found told of iterations when the first step was made: the library,
        told once by whom they end, does not end them by phases any more."""
        no_pipeline = self.alone or not (self._found or self._met_messages)
        return no_pipeline and self.phases.used and (self._steps_end or not self.phases.asked)

    def _end_iteration_alone(self):
        if self._alone_gpu is None:
            return self.library.count_iterations(self.handle, None, 0)
        with self.on_gpu_of_phases() as stream:
            return self.library.stream_count_iterations(self.handle, stream, 0)

    # ---- on, off, and what is known -----------------------------------------------------------------------------------------------

    def disable(self, reason=None):
        try:
            if self.handle is not None:
                self.library.disable(self.handle, (str(reason) if reason else "as asked").replace("\n", " ").encode())
        except Exception as error:
            self.fail(error)

    def enable(self):
        try:
            return self.handle is not None and bool(self.library.enable(self.handle))
        except Exception as error:
            self.fail(error)
            return False

    def receives_from(self, rank):
        """A receive of the pipeline's was posted, from this rank of the world."""
        if self.at_iteration_end is not None and len(self.sources) < 4096:
            self.sources.add(rank)

    def passed_over(self):
        """A message was met that is taken for no pipeline's."""
        if self.pipelines.passed_over == 1 and self.handle is not None:
            self.library.note(self.handle, OTHER_GROUPS)
        if self._patience.called():
            self._look()

    def many_steps(self):
        """Steps of the optimizer so far, if they are many more than iterations; else 0."""
        many = self.steps > Patience.ITERATIONS and self.steps > MANY_STEPS * self.iterations
        return self.steps if many else 0

    def _look(self):
        """Where this rank has had time enough to have a usable bubble: attaches at last, and says once why it has none."""
        patience = self._patience
        if patience.over and not self._postponed:
            return
        ended = patience.ended()
        if self.phases.used or self._for_phases:  # it has something that side tasks can use
            return
        if ended and self._postponed and self.marker is not None:  # so that the rank is seen, if not its bubbles
            self._attach_as(sys.modules[C10D])
        if patience.over or not (ended or self.many_steps()):
            return
        if self.iterations > 0 and self.many_steps() and self.handle is not None:
            self.library.note(self.handle, FEW_ITERATIONS)
        self.inform("why no bubble of this rank can be used", self._say_why)

    def _try_look(self):
        try:
            self._look()
        except Exception as error:
            self.fail(error)

    def _say_why(self):
        why = self._why()
        if why == LEARNING:  # that passes
            return
        name, text, in_the_way = self.library.explain(why)
        self._patience.over = True
        if in_the_way:
            self.say(f"no bubble of this rank can be used [{name}]: {text}")

    def _why(self):
        """A number of the closed set."""
        if off():
            return HOOK_OFF
        if self.is_attached():
            return self.library.why(self.handle)
        if self._failed:
            return FAILED
        if self._arguments is None:
            return NOT_ASKED if self.world is None else ENDED
        if self.world is None:
            return NO_GROUP
        if self.pipelines.passed_over:
            return OTHER_GROUPS
        return FRAMEWORK_SILENT if self._postponed else NO_MESSAGES

    def status(self):
        try:
            library = self.library or Library()
            name, text, _ = library.explain(self._why())
            return Status(self.state(), name, text)
        except Exception as error:  # no library: then nothing is hooked either
            return Status("off", "failed", f"{type(error).__name__}: {error}")

    def state(self):
        try:
            if self.handle is None:
                return "waiting" if self._arguments is not None else "off"
            return ("starting", "active", "disabled", "gone")[self.library.state(self.handle)]
        except Exception as error:
            self.fail(error)
            return "off"

    def connected(self):
        try:
            return self.handle is not None and bool(self.library.connected(self.handle))
        except Exception as error:
            self.fail(error)
            return False

    def page(self):
        """This rank's bubble page (pages.BubblePage); None: not attached, or in a forked child."""
        from . import pages

        return pages.BubblePage.from_address(self.library.page(self.handle)) if self.is_attached() else None

    # ---- for measurements ---------------------------------------------------------------------------------------------------------

    def pause(self, paused):
        """On all ranks after the same iteration: whether calls go straight through from now on. GPUs only."""
        if self.marker is not None and self.marker.STREAMS:
            self.marker.pause(paused)

    def counters(self):
        """What became of the batches that receive (freeride_stream_counters), as a dictionary."""
        result = StreamCounters()
        if self.handle is not None:
            self.library.stream_counters(self.handle, ctypes.byref(result))
        return {name: getattr(result, name) for name, _ in result._fields_}

    def remote_report(self):
        """freeride_remote_report, as a dictionary."""
        result = RemoteReport()
        if self.handle is not None:
            self.library.remote_report(self.handle, ctypes.byref(result))
        found = {name: getattr(result, name) for name, _ in result._fields_}
        for name in ("held_cost", "leased_cost"):
            found[name] = {key: getattr(found[name], key) for key, _ in found[name]._fields_ if key != "reserved0"}
        return found

    def remote_holds(self):
        """The holds since the last call, at most 1024: freeride_remote_hold's fields, each a list."""
        array = (RemoteHold * 1024)()
        count = self.library.remote_holds(self.handle, array, 1024) if self.handle is not None else 0
        return [[getattr(one, name) for name, _ in RemoteHold._fields_] for one in array[:count]]

    def remote_arm(self, arm):
        """On all ranks in the same iteration: "plain", "held", "leased" from the next one on, or None: as planned."""
        if self.handle is not None:
            self.library.remote_arm(self.handle, -1 if arm is None else ("plain", "held", "leased").index(arm))

    def remote_faults(self, late_ms=0, lose_per_mille=0, forge=False, show=False):
        """Hints count as if they came later, as if some were lost, as if all were forged. `show`: an observer is to see the own messages."""
        if self.handle is not None:
            self.library.remote_faults(self.handle, int(late_ms * 1e6), lose_per_mille, int(forge), int(show))


def _framework():
    """For people: what this process trains with."""
    for name in ("torch", "jax", "numpy"):
        module = sys.modules.get(name)
        if module is not None:
            return f"{name} {getattr(module, '__version__', '')}".strip()
    return "python"


def _place(ranks, rank, size):
    """Stage and replica of a rank whose pipeline is `ranks`, where all pipelines of the world have the same shape."""
    stages, first = len(ranks), min(ranks)
    stride = ranks[1] - ranks[0] if stages > 1 else 1
    replicas = max(1, size // stages)
    regular = stride > 0 and tuple(ranks) == tuple(range(first, first + stride * stages, stride))
    replica = first // (stride * stages) * stride + first % stride if regular else first
    return {
        "stage": tuple(ranks).index(rank),
        "stages": stages,
        "replica": min(replica, replicas - 1),
        "replicas": replicas,
    }


hook = Hook()
