"""The documentation is what the code, the results and the notebooks say."""

from __future__ import annotations

import ast
import importlib
import json
import re
import runpy
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import typer
from helpers import ROOT

import eadp
import eadp.core
import eadp.methods
from eadp.cli import app

DOCS = ROOT / "docs"
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
LINK = re.compile(r"\]\(([^)\s]+)\)")
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]
DOTTED = re.compile(r"`([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+)")
PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return runpy.run_path(str(ROOT / "benchmarks" / "cards.py"))


@pytest.fixture
def notebook_pages() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "scripts" / "notebook_pages.py"))


def test_every_method_has_its_card_as_make_cards_writes_it(cards: dict[str, Any]) -> None:
    written = cards["pages"]()
    assert {page.stem for page in written} == set(eadp.list_methods()) - {eadp.NoPruning.name}
    outdated = [page.name for page, text in written.items() if not page.is_file() or page.read_text("utf-8") != text]
    assert outdated == [], "run `make cards`"
    index = (DOCS / "methods" / "index.md").read_text("utf-8")
    assert cards["overview"]() in index, "run `make cards`"
    assert cards["figures"]() in index, "run `make cards`"


def test_every_setting_of_every_method_is_explained_on_its_card(cards: dict[str, Any]) -> None:
    for method in cards["methods"]():
        documented = cards["field_docs"](method)
        assert [each.name for each in fields(method) if not documented.get(each.name)] == [], method.name


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "zensical.toml").read_text("utf-8")
    pages = [page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")]
    assert [page for page in pages if f'"{page}"' not in navigation] == []


@pytest.mark.parametrize("module", ["eadp", "eadp.core", "eadp.methods"])
def test_every_public_name_is_on_an_api_page(module: str) -> None:
    text = "\n".join(page.read_text("utf-8") for page in (DOCS / "api").glob("*.md"))
    documented = {name.rpartition(".")[2] for name in re.findall(r"^::: (\S+)", text, re.MULTILINE)}
    names = {name for name in sys.modules[module].__all__ if not name.startswith("__")}
    cards = {eadp.methods.get_method_class(name).__name__ for name in eadp.list_methods()}
    modules = {name for name in names if f"{module}.{name}" in sys.modules}
    assert names - documented - cards - modules == set()


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "benchmarks/README.md"]
)
def test_the_links_of_pages_outside_the_site_lead_to_files(page: str) -> None:
    path = ROOT / page
    targets = [target.partition("#")[0] for target in LINK.findall(path.read_text("utf-8")) if "://" not in target]
    assert [target for target in targets if not (path.parent / target).exists()] == []


def test_paths_to_docs_in_the_code_lead_to_pages() -> None:
    listing = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    files = [ROOT / name for name in listing.splitlines() if name.endswith((".py", ".md", ".toml", "Makefile"))]
    named = {
        found for file in files if file.is_file() for found in re.findall(r"docs/[\w/-]+\.md", file.read_text("utf-8"))
    }
    assert sorted(path for path in named if not (ROOT / path).is_file() and "NAME" not in path) == []


def exists(name: str) -> bool:
    """Whether a dotted name is a module, or an attribute or field of something in the package or its `core`."""
    first, *rest = name.split(".")
    found: Any = {"eadp": eadp, "core": eadp.core}.get(first, getattr(eadp, first, None))
    for part in rest:
        if part in getattr(found, "__dataclass_fields__", ()):
            return True
        if not hasattr(found, part):
            try:
                importlib.import_module(f"{found.__name__}.{part}")
            except (ImportError, AttributeError):
                return False
        found = getattr(found, part)
    return True


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_names_of_the_package_on_a_page_exist(page: Path) -> None:
    text = page.read_text("utf-8")
    roots = {"eadp", "core", *(name for name in eadp.__all__ if name[0].isupper())}
    names = {name for name in DOTTED.findall(text) if name.split(".")[0] in roots}
    for block in PYTHON_BLOCK.findall(text):
        try:
            nodes = list(ast.walk(ast.parse(block)))
        except SyntaxError:  # a signature, or an ellipsis
            continue
        for node in nodes:
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "eadp":
                names |= {f"{node.module}.{each.name}" for each in node.names}
            if (
                isinstance(node, ast.Attribute)
                and ast.unparse(node).startswith("eadp.")
                and "(" not in ast.unparse(node)
            ):
                names.add(ast.unparse(node))
    assert [name for name in sorted(names) if not exists(name)] == []


def test_every_command_is_on_the_page_of_commands() -> None:
    page = (DOCS / "guides" / "command-line.md").read_text("utf-8")
    assert [name for name in typer.main.get_command(app).commands if f"| `eadp {name}` |" not in page] == []  # type: ignore[attr-defined]


def test_the_readme_names_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert "`make demo`" in text
    assert "`make test`" in text


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_outputs_and_its_page_shows_its_cells(
    path: Path, notebook_pages: dict[str, Any]
) -> None:
    cells = json.loads(path.read_text("utf-8"))["cells"]
    assert all(not cell.get("outputs") and not cell.get("execution_count") for cell in cells)
    page = notebook_pages["page_of"](path).read_text("utf-8")
    notebook = notebook_pages["nbformat"].read(path, as_version=4)
    position = 0
    for source in notebook_pages["sources"](notebook):
        position = page.find(source, position)
        assert position >= 0, f"run `make notebooks`: its page lacks\n{source}"


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, notebook_pages: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    notebook_pages["run"](path)


def test_check_site_finds_dead_links_anchors_images_and_other_hosts(tmp_path: Path) -> None:
    (tmp_path / "good.html").write_text(
        '<h1 id="top">x</h1><a href="https://example.org">fine</a><a href="#top">fine</a>'
    )
    (tmp_path / "bad.html").write_text(
        '<a href="good.html">fine</a><a href="none.html">x</a><a href="good.html#none">x</a><img src="none.png">'
        '<script src="https://example.org/x.js"></script>'
    )
    find_problems = runpy.run_path(str(ROOT / "scripts" / "check_site.py"))["find_problems"]
    assert find_problems(tmp_path) == {
        "none.html does not exist": ["bad.html"],
        "good.html#none is not an anchor of that page": ["bad.html"],
        "none.png does not exist": ["bad.html"],
        "https://example.org/x.js is loaded from another host": ["bad.html"],
    }
