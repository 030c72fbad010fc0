"""`eadp bench` and `eadp plan` on the command line: tables, files, errors."""

import csv
import json

import pytest
from PIL import Image
from typer.testing import CliRunner

from eadp.cli import app
from eadp.measure.stopwatch import PARTS


def run(*arguments):
    return CliRunner().invoke(app, [str(each) for each in arguments], env={"COLUMNS": "120"})


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    accuracy = folder / "results.json"
    outcomes = [("all tokens", 576.0, 0.9), ("eadp", 64.0, 0.8), ("eadp", 7.0, 0.1), ("blind", 576.0, 0.3)]
    accuracy.write_text(
        json.dumps(
            {"outcomes": [dict(zip(("method", "mean_tokens", "accuracy"), each, strict=True)) for each in outcomes]}
        )
    )
    options = ("--model", "random:tiny-llava", "--methods", "eadp,divprune", "--keep", "64,0.5", "--new-tokens", 2)
    result = run("bench", *options, "--samples", 2, "--warmup", 1, "--accuracy", accuracy, "--out", folder)
    return folder, result


def test_tables_show_ratios_first(measured):
    output = measured[1].output
    assert measured[1].exit_code == 0
    assert output.index("ratio to the unpruned model's") < output.index("medians") < output.index("by part")
    for text in ("all tokens", "eadp 64", "divprune 0.5", "2 rounds, wall time, 2 new tokens", "vision tower included"):
        assert text in " ".join(output.split())


def test_json_holds_the_machine_every_run_and_the_ratios(measured):
    found = json.loads((measured[0] / "bench.json").read_text())
    assert {"cpu", "cores", "threads", "torch", "transformers"} <= found["machine"].keys()
    assert [(each["method"], each["keep"]) for each in found["rows"]] == [
        ("all tokens", None),
        ("eadp", 64),
        ("eadp", 0.5),
        ("divprune", 64),
        ("divprune", 0.5),
    ]
    for each in found["rows"]:
        assert len(each["runs"]) == found["rounds"] == 2
        assert each["ratio"]["prefill"].keys() == {"median", "low", "high"}
        assert each["parts_ms"].keys() == set(PARTS)
    assert found["rows"][1]["cache_bytes"] < found["rows"][2]["cache_bytes"] < found["rows"][0]["cache_bytes"]
    assert found["rows"][2]["tokens_after"] == found["rows"][2]["tokens_sent"] == 288


def test_csv_has_one_line_per_run_and_markdown_has_the_tables(measured):
    with (measured[0] / "bench.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 5 * 2
    assert {(line["after"], line["sent"]) for line in lines if line["method"] == "eadp"} == {
        ("64", "64"),
        ("288", "288"),
    }
    assert float(lines[0]["prefill"]) == pytest.approx(sum(float(lines[0][part]) for part in PARTS))
    text = (measured[0] / "bench.md").read_text()
    assert text.count("| eadp 64 |") == 4
    assert "| eadp 64 | 64 | 64 |" in text
    assert "| row | patches | sent |" in text


def test_the_plot_has_an_accuracy_panel(measured):
    with Image.open(measured[0] / "bench.png") as image:
        assert image.width > 1.4 * 8.5 * 130


def test_samples_of_the_user_are_measured(tmp_path):
    Image.new("RGB", (40, 30), "blue").save(tmp_path / "a.png")
    (tmp_path / "data.jsonl").write_text(json.dumps({"image": "a.png", "question": "What colour is it?"}))
    options = ("--model", "random:tiny-llava", "--keep", 32, "--new-tokens", 1, "--out", tmp_path / "out")
    for data in (("--data", tmp_path / "data.jsonl"), ("--data", tmp_path, "--question", "What is it?")):
        result = run("bench", *options, *data)
        assert result.exit_code == 0, result.output
        assert "has 1 samples: all of them count" in result.output.replace("\n", " ")
        assert json.loads((tmp_path / "out" / "bench.json").read_text())["rounds"] == 1


def bench_rows(folder, *options):
    result = run("bench", *options, "--samples", 1, "--warmup", 1, "--new-tokens", 1, "--out", folder)
    assert result.exit_code == 0, result.output
    return {each["method"]: each for each in json.loads((folder / "bench.json").read_text())["rows"]}


def test_clips_share_one_budget_on_a_model_that_takes_images(tmp_path):
    rows = bench_rows(tmp_path, "--model", "pocket", "--frames", 3, "--methods", "eadp,evs", "--keep", 0.25)
    tokens = rows["all tokens"]["tokens_after"]
    assert tokens % 3 == 0
    assert rows["eadp"]["tokens_after"] == tokens / 4
    # EVS keeps the first frame whole.
    assert rows["evs"]["tokens_after"] == tokens / 3


def test_clips_of_a_model_that_takes_videos(tmp_path):
    options = ("--model", "random:tiny-llava-onevision", "--frames", 2, "--keep", 0.125)
    rows = bench_rows(tmp_path, *options, "--methods", "vidcom2,vcast", "--clock", "cpu")
    assert rows["all tokens"]["tokens_after"] == 2 * 196
    assert rows["vcast"]["tokens_after"] == 49


def test_clips_of_the_user(tmp_path):
    folder = tmp_path / "data"
    (folder / "b").mkdir(parents=True)
    frames = [Image.new("RGB", (40, 30), colour) for colour in ("red", "green", "blue", "white")]
    frames[0].save(folder / "a.gif", save_all=True, append_images=frames[1:])
    for number, frame in enumerate(frames):
        frame.save(folder / "b" / f"{number}.png")
    file = folder / "data.jsonl"
    file.write_text("".join(json.dumps({"video": each, "question": "What is it?"}) + "\n" for each in ("a.gif", "b")))
    options = ("--frames", 3, "--methods", "evs", "--keep", 0.5)
    for data in (("--data", file), ("--data", folder, "--question", "What is it?")):
        rows = bench_rows(tmp_path / "out", *options, *data)
        assert rows["all tokens"]["tokens_after"] == 3 * 256
    Image.new("RGB", (40, 30), "blue").save(folder / "c.png")
    file.write_text(json.dumps({"video": "c.png", "question": "What is it?"}))
    result = run("bench", *options, "--data", file)
    assert result.exit_code == 2
    assert "a clip has at least two frames, got 1" in " ".join(result.output.replace("│", " ").split())


def test_plan_prints_the_budget_and_what_fits():
    output = run("plan", "--model", "llava-1.5-7b", "--latency", "0.5x", "--memory", "16GiB").output
    assert "keep=255" in output
    assert "0.50x" in output
    assert "weights 13.4 GiB" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("bench", "--methods", "edap"), "unknown method"),
        (("bench", "--methods", ","), "at least one method"),
        (("bench", "--keep", "many"), "0.125"),
        (("bench", "--data", "nowhere.jsonl"), "there is no nowhere.jsonl"),
        (("bench", "--question", "Why?"), "goes with --data"),
        (("bench", "--model", "random:tiny-qwen3-vl", "--frames", 4), "no part for videos"),
        (("bench", "--accuracy", "pyproject.toml"), "not a results.json"),
        (("bench", "--clock", "sundial"), "wall or cpu"),
        (("bench", "--model", "random:huge"), "there are random:llava-1.5-7b"),
        (("bench", "--model", "nobody/nothing"), "no model can be read"),
        (("plan",), "give a target"),
        (("plan", "--latency", "2x"), "such as 0.5x"),
        (("plan", "--memory", "lots"), "such as 4GiB"),
        (("plan", "--memory", "1GiB"), "nothing fits"),
        (("plan", "--latency", "0.5x", "--dtype", "int3"), "known: float32"),
    ],
)
def test_errors_say_what_would_be_right(arguments, message):
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.output.replace("│", " ").split())
