"""The journal: a kill loses nothing, nothing is written twice, and only one process writes at a time."""

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys

import pytest

from eadp.evaluate.journal import Journal

SETTINGS = {"benchmark": "pocket", "keep": [32, 0.5], "seed": 7}


def test_records_are_read_back(tmp_path):
    with Journal.open(tmp_path / "new" / "run", SETTINGS) as journal:
        journal.add("a", {"answer": "yes", "sizes": (1, 2)})
        journal.extend([("b", {"answer": "no"}), ("c", {"answer": "é\n"})])
        assert journal["a"] == {"key": "a", "answer": "yes", "sizes": [1, 2]}
    with Journal.open(tmp_path / "new" / "run", SETTINGS) as journal:
        assert len(journal) == 3
        assert "b" in journal
        assert "d" not in journal
        assert journal["c"]["answer"] == "é\n"
        journal.add("d", {})
    _, records = Journal.read(tmp_path / "new" / "run")
    assert [record["key"] for record in records] == ["a", "b", "c", "d"]


def test_manifest_describes_the_run(tmp_path):
    with Journal.open(tmp_path, SETTINGS):
        pass
    with Journal.open(tmp_path, SETTINGS):
        pass
    manifest, _ = Journal.read(tmp_path)
    assert manifest["settings"] == SETTINGS
    assert manifest["seed"] == 7
    assert {"python", "eadp", "torch", "transformers"} <= set(manifest["versions"])
    assert manifest["started"] <= manifest["resumed"][0]["started"]
    assert len(manifest["resumed"]) == 1
    here = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True)
    assert here.returncode or manifest["git"]["commit"] == here.stdout.strip()


def test_incomplete_last_line_is_removed(tmp_path):
    with Journal.open(tmp_path, SETTINGS) as journal:
        journal.extend([("a", {"n": 1}), ("b", {"n": 2})])
    complete = (tmp_path / "samples.jsonl").read_bytes()
    for length in range(len(complete) + 1):
        (tmp_path / "samples.jsonl").write_bytes(complete[:length])
        kept = complete[:length].count(b"\n")
        assert len(Journal.read(tmp_path)[1]) == kept
        with Journal.open(tmp_path, SETTINGS) as journal:
            assert len(journal) == kept
            journal.add("new", {"n": 3})
        assert [record["n"] for record in Journal.read(tmp_path)[1]] == [*[1, 2][:kept], 3]


def test_other_settings_are_an_error_that_names_them(tmp_path):
    Journal.open(tmp_path, SETTINGS).close()
    with pytest.raises(ValueError, match="seed: 7 in the folder, 8 given"):
        Journal.open(tmp_path, {**SETTINGS, "seed": 8})
    with pytest.raises(ValueError, match="other: None in the folder, 1 given"):
        Journal.open(tmp_path, {**SETTINGS, "other": 1})


def test_folder_of_another_version_can_be_read_but_not_continued(tmp_path):
    with Journal.open(tmp_path, SETTINGS) as journal:
        journal.add("a", {"tokens": 8})
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    del manifest["format"]
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    assert Journal.read(tmp_path)[1] == [{"key": "a", "tokens": 8}]
    with pytest.raises(ValueError, match="written by another version of eadp"):
        Journal.open(tmp_path, SETTINGS)


def test_second_writer_is_an_error_but_readers_are_allowed(tmp_path):
    with Journal.open(tmp_path, SETTINGS) as journal:
        with pytest.raises(ValueError, match="another run is writing"):
            Journal.open(tmp_path, SETTINGS)
        journal.add("a", {})
        assert len(Journal.read(tmp_path)[1]) == 1
    Journal.open(tmp_path, SETTINGS).close()


def test_ranks_write_to_separate_files(tmp_path):
    with Journal.open(tmp_path, SETTINGS) as first, Journal.open(tmp_path, SETTINGS, rank=1) as second:
        first.add("a", {})
        second.add("b", {})
        assert {record["key"] for record in first.records()} == {"a", "b"}
        with pytest.raises(ValueError, match="another run"):
            Journal.open(tmp_path, SETTINGS, rank=1)
    assert (tmp_path / "samples-1.jsonl").exists()
    with Journal.open(tmp_path, SETTINGS) as journal:
        assert "b" in journal


def _open_as(folder, rank, results):
    with Journal.open(folder, SETTINGS, rank=rank) as journal:
        journal.add(str(rank), {})
        results.put(journal.manifest["started"])


def test_ranks_that_start_together_share_one_manifest(tmp_path):
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    ranks = [context.Process(target=_open_as, args=(tmp_path, rank, results)) for rank in range(4)]
    for rank in ranks:
        rank.start()
    assert len({results.get(timeout=60) for _ in ranks}) == 1
    for rank in ranks:
        rank.join()
        assert rank.exitcode == 0
    assert {record["key"] for record in Journal.read(tmp_path)[1]} == {"0", "1", "2", "3"}
    assert not list(tmp_path.glob(".*"))


def test_sample_can_be_recorded_only_once(tmp_path):
    with Journal.open(tmp_path, SETTINGS) as journal:
        journal.add("a", {})
        with pytest.raises(ValueError, match="can be recorded once"):
            journal.add("a", {})
        with pytest.raises(ValueError, match="can be recorded once"):
            journal.extend([("b", {}), ("b", {})])
    with pytest.raises(ValueError, match="closed"):
        journal.add("c", {})


def test_failed_write_leaves_the_file_unchanged(tmp_path, monkeypatch):
    with Journal.open(tmp_path, SETTINGS) as journal:
        with pytest.raises(ValueError, match="JSON"):
            journal.add("a", {"value": float("nan")})

        def full(descriptor):
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as disk:
            disk.setattr(os, "fsync", full)
            with pytest.raises(OSError, match="No space"):
                journal.add("a", {})
        journal.add("a", {"n": 1})
    assert Journal.read(tmp_path)[1] == [{"key": "a", "n": 1}]


def test_damaged_journals_are_errors(tmp_path):
    with pytest.raises(ValueError, match="not a folder of results"):
        Journal.read(tmp_path)
    (tmp_path / "samples.jsonl").write_text('{"key": "a"}\n')
    with pytest.raises(ValueError, match="no manifest"):
        Journal.open(tmp_path, SETTINGS)
    (tmp_path / "samples.jsonl").unlink()
    Journal.open(tmp_path, SETTINGS).close()
    (tmp_path / "samples.jsonl").write_text('{"key": "a"}\nnot json\n{"key": "b"}\n')
    with pytest.raises(ValueError, match="line 2"):
        Journal.read(tmp_path)


WRITER = """
import sys
from pathlib import Path
from eadp.evaluate.journal import Journal
with Journal.open(Path(sys.argv[1]), {}) as journal:
    for number in range(10**6):
        if str(number) not in journal:
            journal.add(str(number), {"n": number, "filling": "x" * 3000})
            print(number, flush=True)
"""


@pytest.mark.slow
def test_killed_writer_loses_nothing_and_releases_the_folder(tmp_path):
    chance = random.Random(0)
    for _ in range(3):
        with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as run:
            printed = [int(run.stdout.readline()) for _ in range(chance.randint(1, 40))]
            run.send_signal(signal.SIGKILL)
            printed += [int(line) for line in run.stdout]
        with Journal.open(tmp_path, {}) as journal:
            assert {str(number) for number in printed} <= {record["key"] for record in journal.records()}
            assert len(journal) - printed[-1] in (1, 2)  # perhaps one more record than it had time to print
    numbers = [json.loads(line)["n"] for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert numbers == list(range(len(numbers)))
