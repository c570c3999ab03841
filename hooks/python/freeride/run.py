"""python -m freeride.run [-m] train.py|module args…: runs a training script with the hook, without a change to the script.

The hook attaches by itself when the script calls torch.distributed.init_process_group(). Who the rank is comes from the environment: see
freeride.attach(). With FREERIDE_HOOK=0, or whatever goes wrong in the hook, the script runs as if started without it.
"""

import os
import runpy
import sys


def main():
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__.strip())
        return 0 if arguments else 2
    while len(arguments) > 1 and arguments[0].startswith(("--local_rank=", "--local-rank=")):
        # DeepSpeed's and older launchers put it right behind what they start: it is the script's.
        at = arguments.index("-m") + 2 if arguments[1] == "-m" else 2
        arguments = arguments[1:at] + arguments[:1] + arguments[at:]
    from freeride._hook import hook, off

    if not off():
        hook.arm()
    process = os.getpid()
    try:
        code = run(arguments)
    except SystemExit as end:
        if end.code in (None, 0) and process == os.getpid():  # and no child that the script forked
            hook.script_has_ended()
        raise
    if code == 0:
        hook.script_has_ended()
    return code


def run(arguments):
    if arguments[0] == "-m":
        if len(arguments) < 2:
            print("freeride.run: -m needs a module's name", file=sys.stderr)
            return 2
        sys.argv = arguments[1:]
        sys.path[0] = os.getcwd()
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        if not os.path.exists(arguments[0]):
            print(f"freeride.run: there is no {arguments[0]}", file=sys.stderr)
            return 2
        sys.argv = arguments
        sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))
        runpy.run_path(arguments[0], run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main())
