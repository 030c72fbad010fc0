"""The folder of a cell is sent in parts, and answers that the driver has are never sent again."""

import random

import pytest

from eadp.evaluate.journal import Journal
from eadp.evaluate.suites import transfer
from eadp.evaluate.suites.transfer import FilePart, FolderSender, read_progress, write_part


def content_of(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(transfer, "PART_BYTES", 7)


def test_folder_arrives_complete_however_often_it_is_looked_at(tmp_path, small_parts):
    node, driver, chance = tmp_path / "node", tmp_path / "driver", random.Random(3)
    sender = FolderSender(node, [])
    with Journal.open(node / "journal", {"a": 1}) as first, Journal.open(node / "journal", {"a": 1}, rank=1) as second:
        for number in range(20):
            (first if chance.random() < 0.6 else second).add(str(number), {"text": "x" * chance.randrange(30)})
            if chance.random() < 0.4:
                for part in sender.new_answers():
                    write_part(driver, part)
                assert len(Journal.read(driver / "journal")[1]) == number + 1
    (node / "harness").mkdir()
    (node / "harness" / "results.json").write_bytes(bytes(range(256)))
    (node / "harness" / "empty").touch()
    (node / "log.txt").write_text("done\n")
    (node / "record.json").write_text("{}\n")
    (node / "samples.jsonl").write_text("scores\n")
    last = ""
    for part in [*sender.new_answers(), *sender.everything_else()]:
        assert len(part.data) <= 7
        write_part(driver, part)
        last = part.name
    assert last == "record.json"  # where it is, everything is
    assert content_of(driver) == content_of(node)


def test_next_node_gets_the_complete_lines_and_sends_only_what_is_new(tmp_path, small_parts):
    driver, node = tmp_path / "driver", tmp_path / "node"
    with Journal.open(driver / "journal", {}) as journal:
        journal.extend([("a", {"n": 1}), ("b", {"n": 2})])
    with open(driver / "journal" / "samples.jsonl", "ab") as file:
        file.write(b'{"key": "torn')
    sender = FolderSender(node, read_progress(driver))
    assert [record["key"] for record in Journal.read(node / "journal")[1]] == ["a", "b"]
    assert list(sender.new_answers()) == []
    with Journal.open(node / "journal", {}) as journal:
        journal.add("c", {"n": 3})
    sent = list(sender.new_answers())
    assert b"".join(part.data for part in sent) == b'{"key": "c", "n": 3}\n'
    for part in sent:
        write_part(driver, part)
    assert [record["key"] for record in Journal.read(driver / "journal")[1]] == ["a", "b", "c"]
    (driver / "record.json").write_text("{}")
    assert FilePart("record.json", 0, b"{}") in read_progress(driver)


def test_part_replaces_what_the_file_had_from_its_offset_on(tmp_path):
    for part, expected in (
        (FilePart("a/b", 0, b"12345"), b"12345"),
        (FilePart("a/b", 2, b"x"), b"12x"),
        (FilePart("a/b", 0, b""), b""),
    ):
        write_part(tmp_path, part)
        assert (tmp_path / "a" / "b").read_bytes() == expected
