"""When a run started, with which versions, and from which commit."""

from __future__ import annotations

import platform
import subprocess
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from eadp._version import __version__

PACKAGES = ("torch", "transformers", "numpy", "tokenizers", "lmms-eval", "ms-vlmeval")
"""The packages whose versions can change a result."""


def provenance() -> dict[str, Any]:
    """Return the current time, the versions of Python and of the packages, and the commit of the checkout."""
    return {
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version(), "eadp": __version__, **_package_versions()},
        "git": _git_state(),
    }


def _package_versions() -> dict[str, str]:
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def _git_state() -> dict[str, Any] | None:
    """Return the commit of the checkout and whether tracked files were changed; None if eadp is not in a checkout."""
    this_file = Path(__file__)

    def run_git(*arguments: str) -> str:
        command = ["git", "-C", str(this_file.parent), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    try:
        run_git("ls-files", "--error-unmatch", str(this_file))
        return {"commit": run_git("rev-parse", "HEAD"), "changed": bool(run_git("status", "--porcelain", "-uno"))}
    except (OSError, subprocess.CalledProcessError):
        return None
