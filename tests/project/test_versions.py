"""The declared versions are the ones that the floor tests run with, and old versions are refused with a sentence."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import ROOT
from packaging.requirements import Requirement
from packaging.version import Version

import eadp
from eadp import compat
from eadp.serve import compat as serve_compat

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DECLARED = {each.name.lower(): each for each in map(Requirement, PROJECT["dependencies"])}
CAPPED = ("numba", "torch", "transformers")
PRIVATE = re.compile(
    r"^\s*(from|import) (transformers\.(models|masking_utils|cache_utils|generation\.)|torch\.(utils\._|_))"
    r"|get_query_offset\(|_attn_implementation|from transformers import .*ImageProcessorPil",
    re.MULTILINE,
)


def pins(path: str) -> dict[str, Version]:
    lines = (line.split("#")[0].strip() for line in (ROOT / path).read_text().splitlines())
    return {name.lower(): Version(version) for name, version in (line.split("==") for line in lines if line)}


def floor(name: str) -> Version:
    (lowest,) = (each.version for each in DECLARED[name].specifier if each.operator == ">=")
    return Version(lowest)


@pytest.mark.parametrize("name", DECLARED)
def test_the_floor_environment_has_the_oldest_version_declared(name: str) -> None:
    assert pins("hosts/floor.txt")[name] == floor(name)


@pytest.mark.parametrize("name", DECLARED)
def test_the_main_environment_has_a_version_in_the_declared_range(name: str) -> None:
    assert pins("constraints.txt")[name] in DECLARED[name].specifier


@pytest.mark.parametrize("name", CAPPED)
def test_a_next_major_release_is_not_declared(name: str) -> None:
    tested = pins("constraints.txt")[name]
    assert Version(f"{tested.major + 1}.0") not in DECLARED[name].specifier


def test_compat_names_the_declared_floor_and_the_tested_release() -> None:
    assert Version(compat.TRANSFORMERS_FLOOR) == floor("transformers")
    tested = pins("constraints.txt")["transformers"]
    assert f"{tested.major}.{tested.minor}" == compat.TRANSFORMERS_TESTED


def test_an_old_transformers_is_refused_with_a_sentence(tmp_path: Path) -> None:
    """In its own process, which finds an empty package that says it is transformers 5.10.4."""
    (tmp_path / "transformers").mkdir()
    (tmp_path / "transformers" / "__init__.py").touch()
    (tmp_path / "transformers-5.10.4.dist-info").mkdir()
    metadata = "Metadata-Version: 2.1\nName: transformers\nVersion: 5.10.4\n"
    (tmp_path / "transformers-5.10.4.dist-info" / "METADATA").write_text(metadata)
    path = os.pathsep.join([str(tmp_path), str(Path(eadp.__file__).parents[1])])
    code = "import eadp; print('methods work'); eadp.attach"
    env = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.stdout == "methods work\n"
    assert done.stderr.strip().splitlines()[-1] == (
        f"ImportError: eadp needs transformers {compat.TRANSFORMERS_FLOOR} or newer; 5.10.4 is installed: "
        f'pip install --upgrade "transformers>={compat.TRANSFORMERS_FLOOR},<6"'
    )


def test_a_missing_transformers_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "installed_version", lambda distribution: None)
    with pytest.raises(
        ImportError, match=r"^eadp needs transformers [\d.]+ or newer; transformers is not installed: pip"
    ):
        compat.require_transformers("eadp")


@pytest.mark.parametrize("installed", [f"{compat.TRANSFORMERS_FLOOR}.0", "5.100.0.dev0", "6.0.0rc1"])
def test_the_floor_and_newer_releases_are_taken(monkeypatch: pytest.MonkeyPatch, installed: str) -> None:
    monkeypatch.setattr(compat, "installed_version", lambda distribution: installed)
    compat.require_transformers("eadp")


def test_a_missing_name_of_torch_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(compat._NAMES, "tree_bite", "torch.utils._pytree")
    with pytest.raises(ImportError, match=r"^torch \S+ has no tree_bite in torch\.utils\._pytree$"):
        compat.__getattr__("tree_bite")


@pytest.mark.parametrize("name", compat.__all__)
def test_everything_that_compat_exports_is_there(name: str) -> None:
    assert getattr(compat, name) is not None


def test_only_compat_touches_private_and_young_interfaces() -> None:
    package = Path(eadp.__file__).parent
    # The cache map overrides a young method of caches.
    apart = {"compat.py", "runtime/cache_map.py"}
    files = {str(path.relative_to(package)): path.read_text() for path in package.rglob("*.py")}
    assert {name for name, text in files.items() if PRIVATE.search(text)} <= apart


def test_only_the_servers_compat_imports_vllm() -> None:
    package = Path(eadp.__file__).parent
    imports = re.compile(r"^\s*(from|import) vllm\b", re.MULTILINE)
    assert not [str(path) for path in package.rglob("*.py") if imports.search(path.read_text())]


def test_the_servers_compat_says_which_vllm_lacks_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_compat, "installed_version", lambda: "0.99.0")
    monkeypatch.setitem(serve_compat._NAMES, "Gone", "json")
    with pytest.raises(
        ImportError, match=r"^vLLM 0\.99\.0 has no Gone in json; eadp was tested with vLLM [0-9.]+ and [0-9.]+$"
    ):
        serve_compat.__getattr__("Gone")
