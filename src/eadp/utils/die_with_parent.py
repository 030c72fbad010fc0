"""Run a command that gets a signal from the kernel when its parent dies: die_with_parent.py SIGNAL PARENT_PID COMMAND …

A PARENT_PID of 0 stands for whichever process starts the command, such as a launcher of ranks.

Without this, a server or a harness would outlive the program that started it. Linux only. The script imports nothing of
the package, so that it starts at once.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
ANY_PARENT = 0


def die_with_parent(death_signal: signal.Signals, parent: int | None = None) -> list[str]:
    """Return the prefix of a command that gets a signal when its parent dies. Where there is no Linux it is empty.

    Args:
        death_signal: The signal.
        parent: The process that will start the command: None for this one, `ANY_PARENT` if it is not known yet.
    """
    if sys.platform != "linux":
        return []
    return [sys.executable, "-I", __file__, str(int(death_signal)), str(os.getpid() if parent is None else parent)]


if __name__ == "__main__":
    expected = int(sys.argv[2]) or os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(sys.argv[1]))
    if os.getppid() == expected:  # otherwise the parent has died already
        os.execvp(sys.argv[3], sys.argv[3:])
