"""Idle phases that are found without a word of the training's: what it waits for on the host while its GPU can have no work.

Only what is certain is marked. A file's writing: torch.save() copies a tensor from the GPU, then writes it, and only the writing is a phase;
torch.distributed.checkpoint writes by torch.save(). And the wait for a DataLoader's workers. Both only in the thread that trains: what
another thread writes, as asynchronous checkpoints do, says nothing about the GPU.
"""

import functools
import os
import sys
import threading
import time

SAVE, LOADER = "save", "loader"
_LARGE = 4 << 20  # bytes: shorter to write than any phase that is of use
_LONG_NS = 3_000_000  # a wait for data that is worth a mark
# For each so long of such a wait one later wait is marked, long or not: marks, tens of microseconds each, then cost a fiftieth of what is waited
_A_MARK_NS = 1_000_000
_MOST_WATCHED = 4096


def wanted(text, say):
    """(kinds, whether only on GPUs) by FREERIDE_IDLE's text."""
    if text is None or text == "":
        return {SAVE, LOADER}, True
    if text in ("0", "all"):
        return ({SAVE, LOADER} if text == "all" else set()), False
    words = {word.strip() for word in text.split(",")} - {""}
    if words - {SAVE, LOADER}:
        unknown = ", ".join(sorted(words - {SAVE, LOADER}))[:64]
        say(
            f"FREERIDE_IDLE: {unknown} cannot be found by the hook, but save and loader: mark others by freeride.idle()"
        )
    return words & {SAVE, LOADER}, False


class _Saving:
    """A torch.save() under way."""

    def __init__(self, phases):
        self._phases, self._phase = phases, None
        self._copied = True  # since the last record: from the GPU

    def before_record(self, size):
        """A record of so many bytes, all in host memory, is about to be written."""
        if self._phase is None and (size >= _LARGE or not self._copied):
            self._phase = self._phases.begin(SAVE, found=True)
        self._copied = False

    def before_copy(self, *storages):
        """One is about to be copied: to or from the GPU, if any of them is there."""
        if any(_elsewhere(storage) for storage in storages):
            self._copied = True
            self.end()

    def end(self):
        phase, self._phase = self._phase, None
        if phase is not None:
            self._phases.end(phase)


class Found:
    """Of this process. `wrap` replaces functions, as Interception does; its wrappers call on whatever happens to us."""

    def __init__(self, hook, wrap, attempt):
        self._hook, self._wrap, self._try = hook, wrap, attempt
        self._kinds, self._gpu_only = set(), True
        self._here = threading.local()
        self._watched = 0  # waits for data that are still marked
        self._save = None  # (what torch.save was, our wrapper)

    def install(self, imports):
        """Wraps what there is, now or when it is imported."""
        self._kinds, self._gpu_only = wanted(os.environ.get("FREERIDE_IDLE"), self._hook.say)
        if not self._kinds and not os.environ.get("FREERIDE_OBSERVE"):
            return
        imports.after("torch.serialization", self._meet_save)
        imports.after("torch.utils.data.dataloader", self._meet_loaders)
        imports.after("safetensors.torch", self._meet_safetensors)

    def put_back(self):
        """The name that torch has bound before the wrapper was put back."""
        torch, self._kinds = sys.modules.get("torch"), set()
        if self._save is not None and torch is not None and vars(torch).get("save") is self._save[1]:
            torch.save = self._save[0]
        self._save = None

    def _marks(self, kind, certain=True):
        """Is one of this kind to be marked here and now? Observing marks them all."""
        hook = self._hook
        if hook.at_iteration_end is None:
            if kind not in self._kinds or (self._gpu_only and not (certain and hook.gpu.current() is not None)):
                return False
        return threading.get_ident() == (hook.thread or threading.main_thread().ident)

    # ---- files --------------------------------------------------------------------------------------------------------------------

    def _meet_save(self, serialization):
        original = serialization.save
        self._wrap(serialization, "save", self._saving)
        self._save = original, serialization.save
        torch = sys.modules["torch"]
        if vars(torch).get("save") is original:
            torch.save = serialization.save
        self._wrap(torch._C.PyTorchFileWriter, "write_record", self._writing)
        storage = getattr(torch.storage, "UntypedStorage", None) or torch.storage._UntypedStorage
        for name in ("cpu", "copy_"):
            self._wrap(storage, name, self._copying)

    def _saving(self, original):
        @functools.wraps(original)
        def save(*args, **kwargs):
            here = self._here
            if getattr(here, "saving", None) is not None or not self._try(self._marks, SAVE):
                return original(*args, **kwargs)
            here.saving = saving = _Saving(self._hook.phases)
            try:
                return original(*args, **kwargs)
            finally:
                here.saving = None
                saving.end()

        return save

    def _writing(self, original):
        def write_record(writer, *args, **kwargs):
            saving = getattr(self._here, "saving", None)
            if saving is not None:
                self._try(saving.before_record, args[2] if len(args) > 2 else 0)
            return original(writer, *args, **kwargs)

        return functools.update_wrapper(write_record, original)

    def _copying(self, original):
        def copying(storage, *args, **kwargs):
            saving = getattr(self._here, "saving", None)
            if saving is not None:
                self._try(saving.before_copy, storage, *args)
            return original(storage, *args, **kwargs)

        return functools.update_wrapper(copying, original)

    def _meet_safetensors(self, module):
        """What it writes are bytes in host memory."""
        if hasattr(module, "serialize_file"):
            self._wrap(module, "serialize_file", functools.partial(self._around, SAVE))

    def _around(self, kind, original):
        @functools.wraps(original)
        def call(*args, **kwargs):
            phase = self._hook.phases.begin(kind, found=True) if self._try(self._marks, kind) else None
            try:
                return original(*args, **kwargs)
            finally:
                if phase is not None:
                    self._hook.phases.end(phase)

        return call

    # ---- data ---------------------------------------------------------------------------------------------------------------------

    def _meet_loaders(self, module):
        for name, certain in (("_MultiProcessingDataLoaderIter", True), ("_SingleProcessDataLoaderIter", False)):
            owner = getattr(module, name, None)
            if owner is not None and "_next_data" in vars(owner):
                self._wrap(owner, "_next_data", functools.partial(self._waiting, certain))

    def _waiting(self, certain, original):
        """certain: the data is made by other processes. Without them it is made here, perhaps on the GPU."""

        @functools.wraps(original)
        def next_data(*args, **kwargs):
            if not self._try(self._marks, LOADER, certain):
                return original(*args, **kwargs)
            phase = self._hook.phases.begin(LOADER, found=True) if self._watched > 0 else None
            self._watched -= phase is not None
            began = time.monotonic_ns()
            try:
                return original(*args, **kwargs)
            finally:
                if phase is not None:
                    self._hook.phases.end(phase)
                length_ns = time.monotonic_ns() - began
                if length_ns >= _LONG_NS:
                    self._watched = min(max(self._watched, length_ns // _A_MARK_NS), _MOST_WATCHED)

        return next_data


def _elsewhere(storage):
    device = getattr(storage, "device", None)
    return device is not None and device.type != "cpu"
