"""The command `freeride`, also as python -m freeride: `freeride VERB …` is `freeride-ctl VERB …`, but for `freeride demo`."""

import sys

from ._programs import become


def main():
    words = sys.argv[1:]
    if words[:1] == ["demo"]:
        from ._demo import main as demo  # only now: the others need nothing of it

        return demo(words[1:])
    if words[:1] in ([], ["-h"], ["--help"]):
        print(
            "freeride demo      an example training with a side task in its bubbles, in about a minute (--help: its options)\n"
            "freeride VERB ...  the same as freeride-ctl VERB ...:\n"
        )
    return become("freeride-ctl", words)


if __name__ == "__main__":
    sys.exit(main())
