"""Runs a program that ends with the process that started it, even if that process is killed (Linux).

    python parent_death.py PARENT PROGRAM [ARGUMENT...]

This process executes the program in its place, so the process id stays. On Linux the kernel sends it SIGTERM when the
thread that started it ends. If the parent has ended before the program is executed, this process exits. Other systems
send no signal: there the program may outlive the parent.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def main() -> None:
    """Run the command line above."""
    parent, program = int(sys.argv[1]), sys.argv[2]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit("the parent process has ended")
    os.execv(program, sys.argv[2:])  # noqa: S606 - the program is the launcher's choice


if __name__ == "__main__":
    main()
