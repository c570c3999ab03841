"""python -m freeride.run [-m] train.py|module args…: runs a training script with the hook, without a change to the script.

The hook attaches by itself when the script calls torch.distributed.init_process_group(). Who the rank is comes from the environment: see
freeride.attach(). With FREERIDE_HOOK=0, or whatever goes wrong in the hook, the script runs as if started without it.
"""

# This process becomes Python itself, with the options that it was started with, on the script: so __main__, sys.path, tracebacks and whatever else
# a script can see are Python's own. What arms the hook there is a sitecustomize (_start).

import os
import sys

from ._processes import package_folder, processes, start_folder

_VALUE_FOLLOWS = "WX"  # options of Python that take a value


def main():
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__.strip())
        return 0 if arguments else 2
    return start(arguments)


def start(arguments, **settings):
    """Becomes `python [options] ARGUMENTS`, with the hook armed and these variables in its environment. Where Python cannot be started anew, the
    script runs here, and its exit code is returned."""
    arguments = launchers_last(arguments)
    hooked = os.environ.get("FREERIDE_HOOK") != "0"
    front = options_of_python()
    # These options would keep the sitecustomize out.
    if front is not None and sys.executable and not (hooked and (sys.flags.ignore_environment or sys.flags.no_site)):
        try:
            os.execve(sys.executable, [*front, *arguments], environment(hooked, settings))
        except (OSError, ValueError):  # no room for the arguments, or no executable any more
            pass
    if hooked:
        os.environ.update(settings)
        processes.watch_script()
        processes.arm_later()
    return run_here(arguments)


def launchers_last(arguments):
    """DeepSpeed's and older launchers put arguments right behind what they start: they are the script's."""
    theirs = []
    while len(arguments) > 1 and arguments[0].startswith("--") and "=" in arguments[0]:
        theirs, arguments = [*theirs, arguments[0]], arguments[1:]
    at = 2 if arguments[:1] == ["-m"] else 1
    return [*arguments[:at], *theirs, *arguments[at:]]


def options_of_python():
    """The words that this interpreter was started with, up to `-m freeride.run`; None if that is not how it came here: then somebody runs it
    in a process of theirs (a debugger, mpi4py), which is not ours to leave."""
    try:
        with open("/proc/self/cmdline", "rb") as file:
            words = [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]
    except OSError:
        return None
    front, at = words[:1], 1
    while at < len(words):
        word, at = words[at], at + 1
        if not word.startswith("-") or word == "-":
            return None  # a script
        place = next((place for place, letter in enumerate(word) if letter in "cm" + _VALUE_FOLLOWS and place), None)
        if word.startswith("--"):
            values = word == "--check-hash-based-pycs"
        elif place is None:
            values = False
        elif word[place] in "cm":
            module = word[place + 1 :] or "".join(words[at : at + 1])
            ours = word[place] == "m" and module in ("freeride.run", "freeride.observe")
            return [*front, *([word[:place]] if place > 1 else [])] if ours else None
        else:
            values = place + 1 == len(word)
        front.append(word)
        if values:
            front += words[at : at + 1]
            at += 1
    return None


def environment(hooked, settings):
    """What the script's process gets: what this one got, besides what arms the hook. Python has changed its own since, for its locale."""
    try:
        with open("/proc/self/environ", "rb") as file:
            pairs = (pair.partition(b"=") for pair in file.read().split(b"\0") if b"=" in pair)
            made = {name: value for name, _, value in pairs}
    except OSError:
        made = dict(os.environb)
    if hooked:
        before = made.get(b"PYTHONPATH")
        made[b"FREERIDE_START"] = os.fsencode(package_folder())
        made[b"PYTHONPATH"] = os.fsencode(start_folder()) + (b":" + before if before else b"")
        if before is not None:
            made[b"FREERIDE_PYTHONPATH"] = before
        made.update({os.fsencode(name): os.fsencode(value) for name, value in settings.items()})
    return made


# ---- in this process -------------------------------------------------------------------------------------------------------------


def run_here(arguments):
    """As near to Python's own start as can be: the script's module stays __main__ until the process ends."""
    main = sys.modules["__main__"] = type(sys)("__main__")
    main.__builtins__ = sys.modules["builtins"]
    safe = getattr(sys.flags, "safe_path", False)  # then nothing was put before sys.path
    if arguments[0] == "-m":
        if len(arguments) < 2:
            print("freeride.run: -m needs a module's name", file=sys.stderr)
            return 2
        import runpy

        sys.argv = arguments[1:]
        if not safe:
            sys.path[0] = os.getcwd()
        runpy._run_module_as_main(arguments[1])  # python -m itself calls it
        return 0
    from importlib.machinery import SourceFileLoader

    sys.argv = arguments
    if not safe:
        sys.path[0] = os.path.dirname(os.path.realpath(arguments[0]))
    main.__file__, main.__cached__ = os.path.abspath(arguments[0]), None
    main.__loader__ = SourceFileLoader("__main__", main.__file__)
    try:
        source = main.__loader__.get_data(main.__file__)
    except OSError as error:
        print(f"freeride.run: cannot open {arguments[0]}: {error.strerror}", file=sys.stderr)
        return 2
    exec(compile(source, main.__file__, "exec"), main.__dict__)
    return 0


if __name__ == "__main__":
    sys.exit(main())
