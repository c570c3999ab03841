"""Which processes are ranks: what a process tells those that it starts, and what these tell it.

A script that only starts ranks is told, at its end, if none of them was hooked. A process that a rank has started, such
as a loader's worker or one that writes checkpoints, is no rank, though it may make a process group of its own. All that
is by the environment, which child processes inherit. Imports nothing that a script would notice.
"""

import os
import sys

_STARTED_BY = "FREERIDE_STARTED_BY"  # from freeride.run to freeride.run: a file of this name
_RANK = "FREERIDE_RANK"  # from a rank to all below it: its process, and when that was started
_RANKS = "freeride ranks"
_OUT_OF_THE_WAY = 500  # a descriptor that no script expects for the first file that it opens
_MOST_ANCESTORS = 64

# Executed in a process that the script spawns, before the script's module is imported there.
_IN_CHILD = """
try:
    with open(START) as file:
        code = compile(file.read(), START, "exec")
    exec(code, {"__name__": "freeride_start", "PACKAGE": PACKAGE})
except Exception as error:
    import sys
    sys.stderr.write(f"freeride: not hooked: {type(error).__name__}: {error}; training goes on without\\n")
"""


def start_folder():
    """The folder of the sitecustomize that arms the hook."""
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "_start")


def package_folder():
    """What leads to this package, as an entry of sys.path."""
    return os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def _stat(pid):
    """The fields of /proc/PID/stat behind the command's name: [1] is the parent, [19] when it was started."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()


class InChild:
    """Pickled into what a spawned child reads first: unpickling it arms the hook there, and gives None."""

    def __reduce__(self):
        start = os.path.join(start_folder(), "sitecustomize.py")
        return exec, (_IN_CHILD, {"START": start, "PACKAGE": package_folder()})


class Processes:
    """This process' part. Nothing here raises but for the operating system's reasons."""

    def __init__(self):
        self.is_rank = False  # torch.distributed has been initialised in this process
        self.quiet = False  # it has been said why nothing is hooked
        self._script = 0  # the process that runs the script, if it is watched
        # Descriptor of a file that is empty while no rank was hooked in a process that this one has started
        self._ranks_started = None
        self._started_by = None  # the same of the process that started this one

    # ---- a script that starts ranks -----------------------------------------------------------------------------------------------

    def watch_script(self):
        """For freeride.run, in the process that runs the script, before that begins. At its end one line is said if no rank was hooked in
        it or below it."""
        import atexit

        self._script = os.getpid()
        self._started_by = os.environ.get(_STARTED_BY)
        try:
            made = os.memfd_create(_RANKS, os.MFD_CLOEXEC)
            self._ranks_started = _moved(made)
        except (
            OSError,
            AttributeError,
        ):  # then it cannot be said that there are any; built for an old glibc, Python has no memfd
            pass
        else:
            os.environ[_STARTED_BY] = f"/proc/{self._script}/fd/{self._ranks_started}"
        atexit.register(self._script_has_ended)

    def _script_has_ended(self):
        if self._script != os.getpid() or self.is_rank or self.quiet or hasattr(sys, "last_value"):
            return  # a forked child; hooked, or it is known why not; an exception that has been shown
        try:
            started = self._ranks_started is not None and os.fstat(self._ranks_started).st_size > 0
        except OSError:  # the script has closed what it did not open
            return
        if started:
            self._tell_who_started_us()
            return
        try:
            if "jax" in sys.modules:
                sys.stderr.write(
                    "freeride: nothing was hooked: transfers of JAX are not known to the hook. Mark where the device idles by freeride.idle(), and "
                    "a pipeline's waits by the C API, freeride/hook.h\n"
                )
                return
            sys.stderr.write(
                "freeride: nothing was hooked: the script never called init_process_group(), nor was an idle phase marked. If it starts the ranks "
                "itself, start each of these through python -m freeride.run, or let them call freeride.attach()\n"
            )
        except (OSError, ValueError, AttributeError):
            pass

    def _tell_who_started_us(self):
        """A script that starts ranks through freeride.run may itself be run so: it has hooked something, then."""
        # What the script itself has started, or forked, tells the script.
        started_by = self._started_by if self._script == os.getpid() else os.environ.get(_STARTED_BY)
        if started_by is None:
            return
        try:
            if os.readlink(started_by).startswith(f"/memfd:{_RANKS}"):  # not another process of its number
                with open(started_by, "ab") as file:
                    file.write(b".")
        except OSError:  # it has ended, or was another user's
            pass

    @staticmethod
    def arm_later():
        """The hook is armed in this process as soon as it imports torch."""
        call, arguments = InChild().__reduce__()
        call(*arguments)

    # ---- a rank, and what it starts -----------------------------------------------------------------------------------------------

    def becomes_rank(self):
        """There is a default group in this process, which is no other rank's child."""
        self._tell_who_started_us()
        self.is_rank = True
        try:
            os.environ[_RANK] = f"{os.getpid()}:{int(_stat(os.getpid())[19])}"
        except (OSError, ValueError, IndexError):  # no /proc: its children may take themselves for ranks
            pass

    def rank_above(self):
        """The process number of the rank that has started this process, maybe through others; None: no rank has. What an environment says
        that has come another way, as into a job that a rank has submitted, is not believed."""
        said = os.environ.get(_RANK)
        if not said:
            return None
        try:
            rank, started = map(int, said.split(":"))
            above = os.getpid()
            for _ in range(_MOST_ANCESTORS):
                above = int(_stat(above)[1])
                if above == rank:
                    return rank if int(_stat(rank)[19]) == started else None
                if above <= 1:
                    return None
        except (OSError, ValueError, IndexError):
            pass
        return None


def _moved(descriptor):
    """The same file under a number that is not the next one; the descriptor itself where that cannot be."""
    try:
        os.fstat(_OUT_OF_THE_WAY)
    except OSError:
        try:
            os.dup2(descriptor, _OUT_OF_THE_WAY, inheritable=False)
            os.close(descriptor)
            return _OUT_OF_THE_WAY
        except OSError:  # fewer are allowed
            pass
    return descriptor


processes = Processes()
