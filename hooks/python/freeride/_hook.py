"""The hook of this process: who we are, the library's handle, and the rule that no error of ours reaches the training.

Everything the training's own thread runs in a wait is in `begin`, `end` and `iteration_end`, which never raise.
"""
import os
import sys
import threading

from . import _library, _memory

_lock = threading.RLock()
_library_instance = None
_handle = None     # the library's handle; None: not attached
_pid = 0           # of the process that attached: a forked child is none
_arguments = None  # of attach(), while waiting for init_process_group
_said = set()
_place = None      # stage, stages, replica that we attached with, where nobody gave them
_explicit_iterations = False
_had_group = False  # torch.distributed has been initialised in this process
_waits = 0         # marked since the last iteration's end
_stream_iteration_end = None  # _cuda's, where streams mark


def say(text):
    """One line on stderr, once."""
    if text in _said or len(_said) > 16:
        return
    _said.add(text)
    try:
        sys.stderr.write(f"freeride: {text}\n")
    except (OSError, ValueError, AttributeError):
        pass


def off():
    return os.environ.get("FREERIDE_HOOK") == "0"


def library():
    global _library_instance
    if _library_instance is None:
        _library_instance = _library.Library()
    return _library_instance


def fail(error):
    """After an error of our own: the hook goes off for good, and says so once."""
    try:
        if _handle is not None and _pid == os.getpid():
            _library_instance.fail(_handle, f"{type(error).__name__}: {error}".replace("\n", " ").encode())
        else:
            say(f"not attached: {type(error).__name__}: {error}; training goes on without")
    except Exception:  # nothing left to try
        pass


def attach(**arguments):
    global _arguments
    if off():
        return False
    try:
        with _lock:
            if (_handle is not None and _pid == os.getpid()) or _arguments is not None:
                return True
            _memory.preload(library())
            from . import _torch
            _torch.check(arguments)
            _arguments = arguments
            _torch.arm()
            return True
    except Exception as error:
        _arguments = None
        fail(error)
        return False


def arm():
    """For freeride.run: attach with the environment's settings, without importing torch before the script does."""
    global _arguments
    try:
        _memory.preload(library())
        from . import _torch
        _arguments = dict(job=None, device=None, stage=None, stages=None, replica=None, replicas=None, group=None, iterations="optimizer")
        _torch.check(_arguments)
        _torch.arm_at_import()
    except Exception as error:
        _arguments = None
        fail(error)


def script_has_ended():
    """For freeride.run: a script that only starts the ranks would else run unhooked without a word."""
    if _arguments is not None and not _had_group:
        say("nothing was hooked: the script never called init_process_group(). If it starts the ranks itself, start each of these through "
            "python -m freeride.run, or let them call freeride.attach()")


def number(name, given, default, least=0):
    value = given if given is not None else os.environ.get(name)
    if value is None or value == "":
        return default
    value = int(value)
    if not least <= value < 1 << 20:
        raise ValueError(f"{name}={value} is out of range")
    return value


def attach_now(rank, world, framework, stage=None, stages=None, replica=None, replicas=None, cuda_rank=None):
    """Makes the handle; called once torch.distributed knows rank and size of the pipeline's group, or a framework this rank's place. What the
    user says goes before that. cuda_rank: streams of the current CUDA context mark; the rank in the world. Returns whether there is a handle."""
    global _handle, _pid, _arguments, _place
    with _lock:
        if _handle is not None and _pid == os.getpid():
            return True
        if _arguments is None:
            return False
        given, _arguments = _arguments, None
        local = os.environ.get("LOCAL_RANK") or str(rank)
        main = sys.modules.get("__main__")
        script = os.path.basename(getattr(main, "__file__", None) or sys.argv[0] or "python")
        elastic = os.environ.get("TORCHELASTIC_RUN_ID")
        job = given["job"] or os.environ.get("FREERIDE_JOB") or (elastic if elastic and elastic != "none" else None)
        job = job or f"{script}-{os.environ.get('MASTER_PORT', '0')}"
        stages = number("FREERIDE_STAGES", given["stages"], stages or world, 1)
        config = _library.Config()
        config.struct_size = _library.ctypes.sizeof(config)
        config.job = job.encode()
        config.device = (given["device"] or os.environ.get("FREERIDE_DEVICE") or f"cpu-{local}").encode()
        config.framework = framework.encode()
        config.rank = int(os.environ.get("RANK") or rank)
        config.stages = stages
        config.stage = number("FREERIDE_STAGE", given["stage"], rank % stages if stage is None else stage)
        config.replicas = number("FREERIDE_REPLICAS", given["replicas"], replicas or max(1, world // stages), 1)
        guess = min(rank // stages, config.replicas - 1) if replica is None else replica
        config.replica = number("FREERIDE_REPLICA", given["replica"], guess)
        config.local_rank = int(local)
        guessed = given["stage"] is None and not os.environ.get("FREERIDE_STAGE")
        _place = (config.stage, config.stages, config.replica) if guessed else None
        if cuda_rank is not None:
            config.flags, config.rank = _library.CUDA, cuda_rank
            device = given["device"] or os.environ.get("FREERIDE_DEVICE")
            config.device = device.encode() if device else None  # the library knows the context's
        _pid = os.getpid()
        _handle = library().attach(_library.ctypes.byref(config))  # says by itself why, if not
        if cuda_rank is not None and _handle is not None:
            _memory.serve(library(), _handle)
        return _handle is not None


def attached_elsewhere(stage, stages, replica, **_):
    """Has this rank attached with a place that was guessed, and wrongly?"""
    return _handle is not None and _place is not None and _place != (stage, stages, replica)


def begin():
    """A wait begins. Returns whether end() must be called."""
    global _waits
    handle = _handle
    if handle is None:
        return False
    try:
        _waits += 1
        _library_instance.mark_begin(handle)
        return True
    except Exception as error:
        fail(error)
        return False


def end():
    try:
        _library_instance.mark_end(_handle)
    except Exception as error:
        fail(error)


def iteration_end(explicit=False):
    global _waits, _explicit_iterations
    try:
        if explicit:
            _explicit_iterations = True
        elif _explicit_iterations or _waits == 0:
            return  # a second optimizer's step in the same iteration
        _waits = 0
        if _handle is None:
            return
        if _stream_iteration_end is not None:
            _stream_iteration_end(_handle)
        else:
            _library_instance.iteration_end(_handle)
    except Exception as error:
        fail(error)


def disable(reason=None):
    try:
        if _handle is not None:
            _library_instance.disable(_handle, (str(reason) if reason else "as asked").replace("\n", " ").encode())
    except Exception as error:
        fail(error)


def enable():
    try:
        return _handle is not None and bool(_library_instance.enable(_handle))
    except Exception as error:
        fail(error)
        return False


def detach():
    global _handle, _arguments
    try:
        with _lock:
            handle, _handle, _arguments = _handle, None, None
            if handle is not None:
                _library_instance.detach(handle)
    except Exception as error:
        fail(error)


def state():
    try:
        if _handle is None:
            return "waiting" if _arguments is not None else "off"
        return ("starting", "active", "disabled", "gone")[_library_instance.state(_handle)]
    except Exception as error:
        fail(error)
        return "off"


def connected():
    try:
        return _handle is not None and bool(_library_instance.connected(_handle))
    except Exception as error:
        fail(error)
        return False
