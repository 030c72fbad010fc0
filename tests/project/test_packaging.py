"""What people install, cite and run in CI is what the repository says."""

from __future__ import annotations

import ast
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from helpers import ROOT
from packaging.version import Version

import eadp

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PACKAGE = Path(eadp.__file__).parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
GLOBS = PYPROJECT["tool"]["setuptools"]["package-data"]["eadp"]
ENTRY_POINTS = {"console_scripts": PYPROJECT["project"]["scripts"], **PYPROJECT["project"]["entry-points"]}
TARGETS = [target for entries in ENTRY_POINTS.values() for target in entries.values()]


def read_yaml(path: str):
    return yaml.safe_load((ROOT / path).read_text())


@pytest.mark.parametrize("glob", GLOBS)
def test_every_glob_of_package_data_matches_a_file(glob):
    assert any(path.is_file() for path in PACKAGE.glob(glob))


def test_every_data_file_of_the_package_matches_a_glob():
    packed = {path for glob in GLOBS for path in PACKAGE.glob(glob)}
    files = {path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    data = {path for path in files if path.suffix != ".py"}
    assert data <= packed


@pytest.mark.parametrize("target", TARGETS)
def test_every_entry_point_leads_to_a_function(target):
    module, name = target.split(":")
    if module == "eadp.evaluate.lmms" and find_spec("lmms_eval") is None:
        # It imports its harness, which has an environment of its own; the tests there load it.
        tree = ast.parse(Path(find_spec(module).origin).read_text())
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    else:
        assert callable(getattr(import_module(module), name))


def test_the_citation_is_of_this_version():
    assert read_yaml("CITATION.cff")["version"] == Version(eadp.__version__).base_version


def test_the_changelog_starts_with_this_version():
    headings = [line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## ")]
    assert headings[0].split()[1] == Version(eadp.__version__).base_version


def test_the_workflow_runs_what_ci_runs():
    jobs = read_yaml(".github/workflows/ci.yml")["jobs"].values()
    assert ".ci/run" in [step.get("run") for job in jobs for step in job["steps"]]
    assert (ROOT / ".ci/run").stat().st_mode & 0o100


def test_hooks_call_the_projects_own_tools():
    for repository in read_yaml(".pre-commit-config.yaml")["repos"]:
        assert repository["repo"] == "local"
        assert {hook["language"] for hook in repository["hooks"]} == {"system"}
