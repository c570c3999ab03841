"""The command `freeride`, also as python -m freeride: `freeride VERB …` is `freeride-ctl VERB …`."""

import sys

from ._programs import become


def main():
    return become("freeride-ctl", sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
