"""`eadp methods`: every method with what one must know to choose it."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from eadp.cli import app
from eadp.methods import InsideMethod, get_method_class, list_methods

BEFORE = (
    *("cdpruner", "divprune", "downsample", "eadp", "hiprune", "mmtok", "none", "pool", "prumerge", "random", "scope"),
    *("topk", "trim", "uniform", "visionzip", "vispruner", "evs", "vidcom2", "vcast", "floc"),
    *("fastvid", "flashvid", "holitom"),
)


@pytest.fixture(scope="module")
def listing() -> dict[str, list[str]]:
    """The cells of each method's rows; a long cell may go on in rows without a name."""
    printed = CliRunner().invoke(app, ["methods"], env={"COLUMNS": "220"}).output
    found: dict[str, list[str]] = {}
    name = ""
    for line in printed.splitlines():
        if line.startswith("│"):
            first, *rest = (cell.strip() for cell in line.strip("│").split("│"))
            name = first or name
            found.setdefault(name, []).extend(rest)
    return found


def test_every_method_is_listed(listing: dict[str, list[str]]) -> None:
    assert set(listing) == set(list_methods())
    assert {name for name in listing if "before" in listing[name]} == set(BEFORE)


@pytest.mark.parametrize("name", list_methods())
def test_what_a_method_says_of_itself(listing: dict[str, list[str]], name: str) -> None:
    method, cells = get_method_class(name), listing[name]
    assert method.citation in cells
    assert ("inside" if issubclass(method, InsideMethod) else "before") in cells
    assert ("yes" if method.merges else "no") in cells
    assert (", ".join(sorted(method.needs)).replace("_", " ") or "–") in cells
    assert set(method.presets) <= set(cells)


def test_visionzips_splits_are_presets(listing: dict[str, list[str]]) -> None:
    assert "keep=32: 27+5" in listing["visionzip"]
    assert listing["visionzip"][1:4] == ["before", "tower rows, vision attention", "yes"]
