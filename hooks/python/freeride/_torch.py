"""Where torch is met: the one place that wraps its functions, tells a marker (_marks.py) of the calls, and puts the functions back.

Wrapped are methods of two classes, besides a few functions: ProcessGroup's, which every `dist.recv`, `dist.irecv` and
`dist.batch_isend_irecv` ends in, and Work.wait. So a function that the training imported earlier, a P2POp made of it, or a schedule that posts
early and waits late are all covered. Each is wrapped once, whatever attaches how often; without a marker a wrapper only calls on.
"""

import functools
import importlib
import sys
import threading

from ._pipeline import world_ranks

C10D = "torch.distributed.distributed_c10d"

_SCALERS = ("torch.amp.grad_scaler", "torch.cuda.amp.grad_scaler")  # the second one up to torch 2.2


def _messages_of_batch(c10d, args, kwargs):
    return [
        (op.op.__name__ == "isend", group, _peer_in(c10d, group, op), op.tensor)
        for op in (args[0] if args else kwargs["p2p_op_list"])
        for group in [op.group or c10d._get_default_group()]
    ]


def _peer_in(c10d, group, op):
    """Its rank in the group. Up to torch 2.5 a P2POp only knows the one in the world."""
    return op.group_peer if hasattr(op, "group_peer") else world_ranks(c10d, group).index(op.peer)


def _one_message(sends, peer_names):
    def messages(_, args, kwargs):
        group, *args = args
        tensors = args[0] if args else kwargs.get("tensors", ())
        peer = args[1] if len(args) > 1 else next((kwargs[name] for name in peer_names if name in kwargs), None)
        return [(sends, group, peer, tensors[0] if tensors else None)]

    return messages


def _of_any_source(_, args, kwargs):
    group, *args = args
    tensors = args[0] if args else kwargs.get("tensors", ())
    return [(False, group, None, tensors[0] if tensors else None)]


_MESSAGES = {
    "batch_isend_irecv": _messages_of_batch,
    "send": _one_message(True, ("dstRank", "dst")),
    "recv": _one_message(False, ("srcRank", "src")),
    "recv_anysource": _of_any_source,
}


_LOOKS = ("send", "recv", "broadcast", "allreduce", "barrier")


class Interception:
    """This process's wrapped functions. `fail` gets every error of ours, and the call goes on."""

    def __init__(self, fail):
        self._fail = fail
        self._marker = None
        self._look = None  # called at each message and collective
        self._wrapped = {}  # (owner, name) -> (what the owner itself had there, our wrapper)
        self._step_hook = None  # of torch 2's optimizers
        # Batch: its single messages are not met again; step: nor an optimizer in another
        self._inside = threading.local()

    def wrap(self, owner, name, make):
        """Replaces owner's `name` by make(it), once."""
        if (owner, name) in self._wrapped:
            return
        wrapper = make(getattr(owner, name))
        self._wrapped[owner, name] = vars(owner).get(name), wrapper
        setattr(owner, name, wrapper)

    def put_back(self):
        """Everything is as it was. What somebody has wrapped since stays, and calls on; it isn't wrapped again."""
        self._marker = self._look = None
        if self._step_hook is not None:
            self._step_hook.remove()
            self._step_hook = None
        for (owner, name), (own, wrapper) in reversed(list(self._wrapped.items())):
            if vars(owner).get(name) is not wrapper:
                continue
            if own is None:
                delattr(owner, name)
            else:
                setattr(owner, name, own)
            del self._wrapped[owner, name]

    def attempt(self, function, *arguments):
        """What function(*arguments) returns; None where it raises."""
        try:
            return function(*arguments)
        except Exception as error:
            self._fail(error)
            return None

    # ---- when there is a default group --------------------------------------------------------------------------------------------

    def after_init(self, c10d, then):
        """Calls then(c10d) after each init_process_group()."""

        def make(original):
            @functools.wraps(original)
            def init_process_group(*args, **kwargs):
                result = original(*args, **kwargs)
                self.attempt(then, c10d)
                return result

            return init_process_group

        self._wrap_function(c10d, "init_process_group", make)

    def _wrap_function(self, c10d, name, make):
        """Of c10d, and under the name that torch.distributed has for it."""
        package, original = sys.modules.get("torch.distributed"), getattr(c10d, name)
        self.wrap(c10d, name, make)
        if package is not None and getattr(package, name, None) is original:
            self.wrap(package, name, lambda _: getattr(c10d, name))

    def look(self, then):
        """Calls then() before each message and collective of any group: init_process_group() may have been bound to another name before it was
        wrapped, but all end in these methods of a class."""
        self._look = then
        from torch._C import _distributed_c10d as native

        for name in _LOOKS:
            make = (
                functools.partial(self._messages, None, name)
                if name in _MESSAGES
                else functools.partial(self._collective, name)
            )
            self.wrap(native.ProcessGroup, name, make)

    # ---- waits for other stages ---------------------------------------------------------------------------------------------------

    def tell(self, c10d, marker):
        """From now on `marker` is told of the calls that it wants to meet, and of every wait."""
        self._marker = marker
        from torch._C import _distributed_c10d as native

        for name in marker.MEETS:
            if name == "batch_isend_irecv":
                self._wrap_function(c10d, name, functools.partial(self._messages, c10d, name))
            elif name in _MESSAGES:
                self.wrap(native.ProcessGroup, name, functools.partial(self._messages, c10d, name))
            else:
                self.wrap(native.ProcessGroup, name, functools.partial(self._collective, name))
        self.wrap(native.Work, "wait", self._wait)

    def _messages(self, c10d, name, original):
        of, in_batch, inside = _MESSAGES[name], name == "batch_isend_irecv", self._inside

        @functools.wraps(original)
        def call(*args, **kwargs):
            marker = self._told_of(name)
            if marker is None:
                return original(*args, **kwargs)
            posted = None
            try:
                posted = marker.before_messages(of(c10d, args, kwargs), in_batch)
            except Exception as error:
                self._fail(error)
            inside.batch = in_batch
            where = self.attempt(self._enter, marker, posted)
            try:
                works = original(*args, **kwargs)
            finally:
                inside.batch = False
                if where is not None:
                    self.attempt(where.__exit__, None, None, None)
            if posted is not None:
                self.attempt(marker.after_messages, posted, works)
            return works

        return call

    def _told_of(self, name):
        """The marker, if it is to be told of this call."""
        if getattr(self._inside, "batch", False):
            return None
        if self._look is not None:
            self.attempt(self._look)
        marker = self._marker
        return marker if marker is not None and name in marker.MEETS else None

    def _enter(self, marker, posted):
        where = marker.where(posted)
        where.__enter__()
        return where

    def _collective(self, name, original):
        @functools.wraps(original)
        def call(group, *args, **kwargs):
            marker = self._told_of(name)
            if marker is None:
                return original(group, *args, **kwargs)
            self.attempt(marker.before_collective, group, args, kwargs)
            work = original(group, *args, **kwargs)
            self.attempt(marker.after_collective, group, work, args, kwargs)
            return work

        return call

    def _wait(self, original):
        @functools.wraps(original)
        def wait(work, *args, **kwargs):
            marker = self._marker
            if marker is None or not self.attempt(marker.before_wait, work):
                return original(work, *args, **kwargs)
            try:
                return original(work, *args, **kwargs)
            finally:
                self.attempt(marker.after_wait)

        return wait

    # ---- iterations ---------------------------------------------------------------------------------------------------------------

    def after_steps(self, then):
        """Calls then() after each optimizer's step, and after one that a gradient scaler has left out, since a gradient was not finite."""
        for name in _SCALERS:
            scaler = getattr(sys.modules.get(name), "GradScaler", None)
            if scaler is not None and "step" in vars(scaler):
                self.wrap(scaler, "step", functools.partial(self._counting, then))
        # By its full name: torch.optim deletes the attribute in some versions.
        module = importlib.import_module("torch.optim.optimizer")
        register = getattr(module, "register_optimizer_step_post_hook", None)
        if register is not None:  # torch 2
            if self._step_hook is None:
                self._step_hook = register(lambda *_: then())
            return
        base = module.Optimizer

        def make(original_init):
            @functools.wraps(original_init)
            def init(optimizer, *args, **kwargs):
                original_init(optimizer, *args, **kwargs)
                self.attempt(self._wrap_step_of, type(optimizer), then)

            return init

        self.wrap(base, "__init__", make)
        pending = [base]
        while pending:  # optimizers made before us; a method looked up on an object is looked up on its class
            for kind in pending.pop().__subclasses__():
                pending.append(kind)
                self._wrap_step_of(kind, then)

    def _wrap_step_of(self, kind, then):
        for owner in kind.__mro__:
            if owner.__dict__.get("step") is None:
                continue
            if owner.__module__ != "torch.optim.optimizer":
                self.wrap(owner, "step", functools.partial(self._counting, then))
            return

    def _counting(self, then, original):
        @functools.wraps(original)
        def step(*args, **kwargs):
            outer = not getattr(self._inside, "step", False)  # an optimizer that wraps another one makes one step
            self._inside.step = True
            try:
                result = original(*args, **kwargs)
            finally:
                if outer:
                    self._inside.step = False
            if outer:
                then()
            return result

        return step
