"""Workers that train together."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import os, pathlib, sys, time
from training import distributed

def note_own_process(folder):
    (folder / f"{distributed.rank()}.part").write_text(str(os.getpid()))
    (folder / f"{distributed.rank()}.part").rename(folder / f"{distributed.rank()}.pid")
    time.sleep(600)

if __name__ == "__main__":
    distributed.run(2, note_own_process, pathlib.Path(sys.argv[1]))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent died")
def test_workers_end_with_their_parent_in_the_background_too(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    in_background = ["sh", "-c", 'trap "" INT; exec "$@"', "sh"]
    command = [*in_background, sys.executable, program, tmp_path]
    parent = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)})
    files = [tmp_path / f"{rank}.pid" for rank in range(2)]
    while not all(file.exists() for file in files):
        assert parent.poll() is None
        time.sleep(0.2)
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 60
    while any(_is_running(file.read_text()) for file in files):
        assert time.monotonic() < deadline, "the workers outlive their parent"
        time.sleep(0.2)


def _is_running(process: str) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
