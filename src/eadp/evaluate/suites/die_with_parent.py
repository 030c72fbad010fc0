"""leash.py PID COMMAND …: becomes the command, which the kernel kills when process PID, its parent, dies. Linux.

Without it a harness would go on writing while its killed runner is started again. A script without a part of the
package, so that it starts at once.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == int(sys.argv[1]):  # else it died before this line
        os.execvp(sys.argv[2], sys.argv[2:])
