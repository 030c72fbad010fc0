"""The `eadp` command. Each module holds one group of subcommands."""

from __future__ import annotations

from eadp.cli import evaluate, explore, harness, measure, parity, serve, study, warmup  # noqa: F401 - registers the commands
from eadp.cli.app import app

__all__ = ["app"]
