"""Runs a program that ends with the process that started it, even if that process is killed (Linux).

    python parent_death.py PARENT PROGRAM [ARGUMENT...]

It becomes the program, so the process id stays. The kernel sends SIGTERM when the thread that started it ends; what
the parent may have done before that was asked for is looked at afterwards. Elsewhere it just becomes the program.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def main() -> None:
    """The command line above."""
    parent, program = int(sys.argv[1]), sys.argv[2]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit("what was to be served has ended")
    os.execv(program, sys.argv[2:])  # noqa: S606 - the program is the launcher's choice


if __name__ == "__main__":
    main()
