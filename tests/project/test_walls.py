"""What the import contracts of pyproject.toml see."""

import grimp
import pytest

LAZY = ("eadp.cli.explore", "eadp.demo")
TYPES_ONLY = ("eadp.cli.explore", "eadp.view.comparison")


@pytest.fixture(scope="module")
def graph():
    return grimp.build_graph("eadp", cache_dir=None)


@pytest.mark.parametrize(("importer", "imported"), [LAZY, TYPES_ONLY], ids=["in a function", "for type checkers"])
def test_every_kind_of_import_counts(graph, importer, imported):
    assert graph.direct_import_exists(importer=importer, imported=imported)
