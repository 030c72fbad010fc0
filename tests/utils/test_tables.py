"""Tables as text."""

from rich.console import Console

from eadp.utils.tables import build_table, format_markdown


def test_a_markdown_table():
    assert format_markdown(["a", "b"], [["1", "2"], ["3", "4"]]) == "| a | b |\n| --- | --- |\n| 1 | 2 |\n| 3 | 4 |"


def test_a_table_for_the_terminal_aligns_its_columns():
    console = Console(width=40, record=True)
    console.print(build_table(["name", "score"], [["x", "1"]], left=["name"], title="scores"))
    text = console.export_text()
    assert "scores" in text
    assert "│ x    │     1 │" in text
