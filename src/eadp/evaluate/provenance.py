"""What a run ran with: when, which versions, which state of the checkout."""

from __future__ import annotations

import platform
import subprocess
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from eadp._version import __version__

PACKAGES = ("torch", "transformers", "numpy", "tokenizers", "lmms-eval", "ms-vlmeval")
"""Whose versions can change a result."""


def provenance() -> dict[str, Any]:
    return {
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version(), "eadp": __version__, **_packages()},
        "git": _git(),
    }


def _packages() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _git() -> dict[str, Any] | None:
    """Commit of the checkout that eadp runs from, and whether files of it were changed; None outside of one."""
    ours = Path(__file__)

    def ask(*arguments: str) -> str:
        command = ["git", "-C", str(ours.parent), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    try:
        ask("ls-files", "--error-unmatch", str(ours))
        return {"commit": ask("rev-parse", "HEAD"), "changed": bool(ask("status", "--porcelain", "-uno"))}
    except (OSError, subprocess.CalledProcessError):
        return None
