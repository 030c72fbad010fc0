"""The `eadp` command: help that teaches, errors that say what would be right."""

import pytest
from helpers.command import run


def test_help_names_every_command():
    for command in ("methods", "demo", "eval", "flops", "bench", "plan", "paper", "sweep", "compare"):
        assert command in run("--help").output
        assert run(command, "--help").exit_code == 0


def test_methods_lists_what_each_needs():
    output = run("methods").output
    assert "eadp" in output
    assert "text" in output


def test_flops_counts_by_part():
    output = run("flops", "--model", "llava-1.5-7b", "--keep", "64").output
    assert "3,989.2" in output  # 616 tokens · 6.476 G
    assert "20.7%" in output


def test_flops_beside_the_paper():
    output = run("flops", "--paper").output
    assert "2,959.9" in output
    assert "1,296" in output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("flops", "--model", "llava-9"), "llava-1.5-7b"),
        (("flops", "--grid", "24"), "24x24"),
        (("eval", "imagenet"), "known: pocket"),
        (("eval", "pocket", "--keep", "many"), "0.125"),
        (("eval", "pocket", "--methods", "edap", "--samples", "1"), "unknown method"),
    ],
)
def test_errors_say_what_would_be_right(arguments, says):
    result = run(*arguments)
    assert result.exit_code != 0
    assert says in result.output.replace("\n", " ") + str(result.exception)
