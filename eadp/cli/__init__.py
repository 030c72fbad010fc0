"""The `eadp` command: one file a group of subcommands."""

from __future__ import annotations

from eadp.cli import evaluate, look, measure, serve  # noqa: F401 - importing them adds their commands
from eadp.cli.app import app

__all__ = ["app"]
