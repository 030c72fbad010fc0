"""Run the `eadp` command in this process."""

from typing import Any

from click.testing import Result
from typer.testing import CliRunner

from eadp.cli import app


def run(*arguments: Any) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "160"})
