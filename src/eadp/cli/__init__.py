"""The `eadp` command: one file a group of subcommands."""

from __future__ import annotations

from eadp.cli import evaluate, harness, look, measure, parity, serve, study  # noqa: F401 - importing them adds their commands
from eadp.cli.app import app

__all__ = ["app"]
