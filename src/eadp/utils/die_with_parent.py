"""Run a command that gets a signal from the kernel when its parent dies: die_with_parent.py SIGNAL PARENT_PID COMMAND …

Without this, a server or a harness would outlive the program that started it. Linux only. The script imports nothing of
the package, so that it starts at once.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with_parent(death_signal: signal.Signals) -> list[str]:
    """Return the prefix of a command that gets a signal when this process dies. Where there is no Linux it is empty."""
    if sys.platform != "linux":
        return []
    return [sys.executable, "-I", __file__, str(int(death_signal)), str(os.getpid())]


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(sys.argv[1]))
    if os.getppid() == int(sys.argv[2]):  # otherwise the parent has died already
        os.execvp(sys.argv[3], sys.argv[3:])
