"""The `eadp` command: its help has examples, and its errors say what would be right."""

import pytest
import typer
from helpers.command import run

from eadp.cli import app

COMMANDS = sorted(typer.main.get_command(app).commands)


def test_help_lists_every_command():
    output = run("--help").output
    assert [command for command in COMMANDS if command not in output] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_has_an_example(command):
    result = run(command, "--help")
    assert result.exit_code == 0
    assert f"Example: eadp {command}" in result.output


def test_methods_lists_the_needs_of_each_method():
    output = run("methods").output
    assert "eadp" in output
    assert "text" in output


def test_flops_counts_by_part():
    output = run("flops", "--model", "llava-1.5-7b", "--keep", "64").output
    assert "3,989.2" in output  # 616 tokens · 6.476 G
    assert "20.6%" in output


def test_flops_prints_the_papers_tables():
    output = run("flops", "--paper").output
    assert "2,959.9" in output
    assert "1,296" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("flops", "--model", "llava-9"), "llava-1.5-7b"),
        (("flops", "--grid", "24"), "24x24"),
        (("eval", "imagenet"), "known: pocket"),
        (("eval", "pocket", "--keep", "many"), "0.125"),
        (("eval", "pocket", "--methods", "edap", "--samples", "1"), "unknown method"),
    ],
)
def test_errors_say_what_would_be_right(arguments, message):
    result = run(*arguments)
    assert result.exit_code != 0
    assert message in result.output.replace("\n", " ") + str(result.exception)
