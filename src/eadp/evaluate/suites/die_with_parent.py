"""Run a command that the kernel kills when its parent dies: die_with_parent.py PARENT_PID COMMAND …

Without this, a harness would still be writing when its killed runner is started again. Linux only. The script imports
nothing of the package, so that it starts at once.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == int(sys.argv[1]):  # otherwise the parent has died already
        os.execvp(sys.argv[2], sys.argv[2:])
