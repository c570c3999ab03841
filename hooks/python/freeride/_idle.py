"""Idle phases: stretches of any length in which training leaves its device alone, such as a rollout or a checkpoint.

Here is what Python adds to freeride_hook_idle_begin(): blocks, functions and pairs of calls, and what becomes of wrong use. A phase that is not
ended as it was begun is ended early, never late: each such case is said once. Which phases are found by themselves: _found.py.
"""

import atexit
import functools
import inspect
import math
import os
import threading

_OPEN, _FOUND = 1, 2  # FREERIDE_IDLE_OPEN, FREERIDE_IDLE_FOUND
_MOST_BEGUN = 1024  # that are remembered: only who never ends any has more


class _Begun:
    """One begin. `number` is the library's; 0: there is nothing to end, or no longer."""

    __slots__ = ("name", "number", "handle", "thread", "pid", "pair")

    def __init__(self, name, pair):
        self.name, self.pair, self.number, self.handle = name, pair, 0, None
        self.thread, self.pid = threading.get_ident(), os.getpid()


class Phases:
    """The phases of this process. Nothing here raises, or blocks. May be called from any thread."""

    def __init__(self, hook):
        self._hook = hook
        self._begun = []  # and not ended, oldest first; one operation at a time, so that a fork finds no lock
        self._refused = set()  # names of which an end was forgotten
        self._exits = False  # at exit it is looked for phases that were never ended
        self.used = False  # one was begun
        self.asked = False  # by training: then phases end iterations

    def begin(self, name, seconds=None, open=False, pair=False, found=False):
        """Returns what end() takes. `found`: training has not asked for it, so that nothing is said where it cannot be."""
        one = _Begun(name if isinstance(name, str) else str(name), pair)
        try:
            if not pair or self._may_begin(one):
                self._begin(one, seconds, open, found)
        except Exception as error:
            self._hook.fail(error)
        except BaseException:  # an interruption of training's, behind which no block ends this
            self._end(one)
            raise
        if pair or one.number:
            self._remember(one)
        return one

    def _remember(self, one):
        self._begun.append(one)
        if len(self._begun) > _MOST_BEGUN:
            # Never one that is under way, which nobody could end then.
            self.end(next((other for other in self._begun[:] if not other.number), one))

    def _begin(self, one, seconds, open, found):
        hook = self._hook
        one.handle = handle = hook.handle_for_phases(one.name, quiet=found)
        if handle is None or (found and hook.library.idle_phase(handle)):
            return
        if not self._exits:
            self._exits = True
            atexit.register(self._at_exit)
        text, ns = one.name.encode(errors="replace"), self._nanoseconds(seconds)
        flags = (_OPEN if open else 0) | (_FOUND if found else 0)
        with hook.on_gpu_of_phases() as stream:
            one.number = hook.library.idle_begin(handle, text, ns, flags, stream)
        if not self.used:
            hook.see_steps()
        self.used = True
        self.asked = self.asked or not found

    def end(self, one):
        try:
            self._begun.remove(one)
        except ValueError:
            return
        self._end(one)

    def _end(self, one):
        number, one.number = one.number, 0
        if not number or one.pid != os.getpid():  # a forked child ends nothing of its parent's
            return
        try:
            self._hook.library.idle_end(one.handle, number)
            self._hook.phase_ended()
        except Exception as error:
            self._hook.fail(error)

    def _may_begin(self, one):
        if one.name not in self._refused:
            forgotten = [
                other
                for other in self._begun
                if other.pair and other.name == one.name and (other.thread, other.pid) == (one.thread, one.pid)
            ]
            if not forgotten:
                return True
            for other in forgotten:
                self.end(other)
            self._refused.add(one.name)
            self._hook.say(
                f'idle_begin("{one.name}") again without idle_end(): the phase is ended, and phases of this name are marked no more'
            )
        return False

    def end_pair(self):
        """The training's idle_end(): of the phase that this thread has begun last."""
        pid, thread, say = os.getpid(), threading.get_ident(), self._hook.say
        pairs = [one for one in self._begun if one.pair]
        here = [one for one in pairs if one.pid == pid]
        mine = [one for one in here if one.thread == thread]
        blocks = [one for one in self._begun if one.pid == pid and not one.pair]
        if mine:
            self.end(mine[-1])
        elif here:
            say(f'idle_end() in another thread than idle_begin("{here[-1].name}"): the phase ends')
            self.end(here[-1])
        elif pairs:
            say(
                f'idle_end() in process {pid}: process {pairs[-1].pid} has begun phase "{pairs[-1].name}", and has to end it'
            )
        elif blocks:
            say(f'idle_end() without idle_begin(): phase "{blocks[-1].name}", which its block would end, ends')
            self.end(blocks[-1])
        else:
            say("idle_end() without idle_begin(): there is no phase to end")

    def step(self):
        """An optimizer has made its step, for which it has used the device."""
        what = "an optimizer made its step"
        self.training_goes_on(what)
        handle = self._hook.handle
        number = handle is not None and self._hook.library.idle_phase(handle)
        if number:  # begun in C or C++, or an interruption came before its number was known here
            self._say_goes_on(what, "a phase")
            self._hook.library.idle_end(handle, number)

    def training_goes_on(self, what):
        for one in self._begun[:] if self._begun else ():
            if one.number and one.pid == os.getpid():
                self._say_goes_on(what, f'phase "{one.name}"')
                self._end(one)

    def _say_goes_on(self, what, phase):
        self._hook.say(f"{what} inside of {phase}, which ends there: the end of the phase is missing or late")

    def forget(self):
        """The handle was detached, which has ended its phases."""
        for one in self._begun[:]:
            one.number = 0

    def _at_exit(self):
        for one in self._begun[:]:
            if one.number and one.pid == os.getpid():
                self._hook.say(f'phase "{one.name}" was never ended: it ends with the process')
                self._end(one)

    def _nanoseconds(self, seconds):
        """What training says of a phase's length; 0: nothing, or nothing that makes sense."""
        if seconds is None:
            return 0
        try:
            ns = float(seconds) * 1e9
        except (TypeError, ValueError, OverflowError):
            ns = math.nan
        if 0 < ns < 1 << 62:
            return int(ns)
        self._hook.say(f"a phase of {str(seconds)[:32]} s: no length; it is learned")
        return 0


class Phase:
    """A block or a function that is a phase."""

    def __init__(self, phases, name, seconds=None, open=False):
        self._phases, self._what, self._begun = phases, (name, seconds, open), []

    def __enter__(self):
        self._begun.append(self._phases.begin(*self._what))
        return self

    def __exit__(self, *_):
        if self._begun:
            self._phases.end(self._begun.pop())

    def __reduce__(self):
        """A copy, in this process or in one that is sent it, is of the same name, and is not under way."""
        from . import idle

        return idle, self._what

    def _another(self):
        return Phase(self._phases, *self._what)

    def __call__(self, function):
        # The wrappers hold self alone: what pickles functions by value, as Ray does, pickles what they hold.
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            self._phases._hook.say(
                f'phase "{self._what[0]}" is not marked: a generator\'s body runs when somebody takes its values'
            )
            return function
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def phase_of_coroutine(*args, **kwargs):
                with self._another():
                    return await function(*args, **kwargs)

            return phase_of_coroutine

        @functools.wraps(function)
        def phase(*args, **kwargs):
            with self._another():
                return function(*args, **kwargs)

        return phase


class NoPhase:
    """With FREERIDE_HOOK=0."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def __call__(self, function):
        return function
