"""Atomic writes."""

from eadp.utils.files import create_file, replace_file


def test_replacing_a_file_leaves_no_other_files(tmp_path):
    path = tmp_path / "results.json"
    for text in ("old", "new"):
        replace_file(path, text)
        assert path.read_text() == text
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_is_created_once(tmp_path):
    path = tmp_path / "manifest.json"
    assert create_file(path, "first")
    assert not create_file(path, "second")
    assert path.read_text() == "first"
    assert list(tmp_path.iterdir()) == [path]
