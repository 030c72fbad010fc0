"""The paper's tables: complete, as printed, and consistent where the paper is consistent."""

from decimal import Decimal

import pytest
from typer.testing import CliRunner

from eadp import paper
from eadp.cli import app
from eadp.methods import list_methods
from eadp.paper import layout

ROWS = {
    "tab:llava-1.5": 30,
    "tab:llava-next": 31,
    "tab:qwen2.5-vl": 13,
    "tab:qwen3vl8b": 10,
    "tab:llava-video": 13,
    "tab: efficiency": 13,
    "tab:ablation-128": 25,
    "tab:mvbench_details": 13,
    "tab:llava-1.5-13b": 28,
    "tab:llava-next-13b": 28,
    "tab:qwen2.5-vl-3b": 13,
    "tab:efficiency-llava-1.6": 13,
    "tab:efficiency-qwen2.5-vl": 13,
    "tab:wall-time-clock": 3,
    "tab:temp_ablation": 10,
    "tab:dynamic-allocation": 8,
}
"""Every table of the paper and its supplement in their order, with its rows as counted by hand."""

FIGURES = 2473
"""Counted in the paper's source: every number in a cell."""

AVERAGES = {
    ("tab:qwen2.5-vl", "1296", "all tokens", ""): "83.9",
    ("tab:qwen2.5-vl", "512", "divprune", ""): "78.2",
    ("tab:qwen3vl8b", "256", "eadp", ""): "68.3",
    ("tab:ablation-128", "128", "eadp", "mu=0.8"): "68.4",
    ("tab:ablation-128", "128", "eadp", "smoothing=1"): "68.0",
    ("tab:ablation-128", "128", "eadp", "smoothing=7"): "68.5",
    ("tab:ablation-128", "128", "eadp", "dispersion=central_mass"): "68.5",
    ("tab:temp_ablation", "128", "eadp", "tau=0.002"): "67.7",
    ("tab:temp_ablation", "128", "eadp", "gamma=0.02"): "68.4",
    ("tab:temp_ablation", "128", "eadp", "gamma=0.002"): "68.6",
}
"""Rows whose printed average is not the mean of their printed figures, with the average that would be."""

AVERAGED = [table for table in paper.tables() if table.averaged]


def mean(table, row):
    """In exact decimals, so that a half is a half."""
    cells = {**row.printed}
    if "MME/20" in cells:
        cells["MME"] = str(20 * Decimal(cells["MME/20"]))
    return sum(Decimal(cells[c]) / Decimal(table.divisors.get(c, 1)) for c in table.averaged) / len(table.averaged)


def test_every_table_of_the_paper_exists():
    assert {table.label: len(table.rows) for table in paper.tables()} == ROWS
    assert [table.label for table in paper.tables()] == list(ROWS)
    assert sum(len(row.printed) for table in paper.tables() for row in table.rows) == FIGURES


@pytest.mark.parametrize("table", AVERAGED, ids=lambda table: table.label)
def test_averages_agree_with_the_printed_ones_but_for_ten(table):
    wrong = {}
    for row in table.rows:
        exact = mean(table, row)
        if abs(exact - Decimal(row.printed[paper.AVERAGE])) > Decimal("0.05"):
            wrong[table.label, row.heading, row.method, row.setting] = str(exact.quantize(Decimal("0.1")))
    assert wrong == {key: right for key, right in AVERAGES.items() if key[0] == table.label}


def test_the_averages_that_are_off_are_off_by_less_than_their_figures_rounding():
    for label, heading, method, setting in AVERAGES:
        table = paper.table(label)
        row = next(r for r in table.rows if (r.heading, r.method, r.setting) == (heading, method, setting))
        assert abs(mean(table, row) - Decimal(row.printed[paper.AVERAGE])) < Decimal("0.1")


def test_library_averages_as_the_paper_does():
    for table in AVERAGED:
        for row in table.rows:
            if "MME/20" not in row.printed:
                assert table.average(row.figures) == pytest.approx(float(mean(table, row)))
    with pytest.raises(ValueError, match=r"missing: .*MM-Vet"):
        paper.table("llava-1.5").average({"GQA": 60.0})
    with pytest.raises(ValueError, match="no average"):
        paper.table("wall-time-clock").average({})


def test_mvbench_is_the_mean_of_its_twenty_subtasks():
    details, whole = paper.table("mvbench_details"), paper.table("llava-video")
    assert len(details.averaged) == 20
    for row in details.rows:
        assert row.printed[paper.AVERAGE] == whole.find_row(row.method, row.keep).printed["MVBench"]


def test_overall_is_the_mean_of_three_budgets_but_for_one():
    wrong = []
    table = paper.table("dynamic-allocation")
    for setting in ("allocation=importance", "allocation=global_guided"):
        *budgets, overall = [row for row in table.rows if row.setting == setting]
        for column in [*table.averaged, paper.AVERAGE]:
            exact = sum(Decimal(row.printed[column]) for row in budgets) / 3 / Decimal(table.divisors.get(column, 1))
            said = overall.printed.get(column) or overall.printed["MME/20"]
            if abs(exact - Decimal(said)) > Decimal("0.05"):
                wrong.append((setting, column, said, str(exact.quantize(Decimal("0.1")))))
    assert wrong == [("allocation=global_guided", "MMBench-CN", "56.2", "56.3")]


def test_speed_ups_are_ratios_to_the_full_row_but_for_one():
    wrong = []
    for table in paper.tables("efficiency"):
        full, *rows = table.rows
        for row in rows:
            for column in ("prefill", "latency", "FLOPs"):
                exact = Decimal(full.printed[column]) / Decimal(row.printed[column])
                if abs(exact - Decimal(row.printed[f"{column} ×"])) > Decimal("0.05"):
                    wrong.append((table.model, row.keep, row.method, column, row.printed[f"{column} ×"]))
    assert wrong == [("LLaVA-1.5-7B", 128, "hiprune", "prefill", "2.0")]  # 207.4 / 99.4 is 2.1


def test_the_parts_of_the_time_add_up():
    parts = ["global guidance", "dense guidance", "score fusion", "smoothing and polarisation", "facility location"]
    for row in paper.table("wall-time-clock").rows:
        assert sum(row.figures[part] for part in parts) == pytest.approx(row.figures["total"], abs=0.011)


@pytest.mark.parametrize(
    ("label", "method", "keep", "column", "figure"),
    [
        ("tab:llava-1.5", "all tokens", 576, "VizWiz", "50.1"),
        ("tab:llava-1.5", "all tokens", 576, "VizWiz-val", "55.6"),
        ("tab:llava-1.5", "fastv", 64, "POPE", "37.2"),
        ("tab:llava-1.5", "eadp", 32, "MM-Vet", "30.6"),
        ("tab:llava-next", "pyramiddrop", 320, "MME", "1180.7"),
        ("tab:llava-next", "hiprune", 640, "TextVQA", "48.6"),
        ("tab:qwen2.5-vl", "cdpruner", 128, "OCRBench", "389"),
        ("tab:qwen2.5-vl", "eadp", 256, "average", "74.3"),
        ("tab:qwen3vl8b", "eadp", 128, "DocVQA", "45.3"),
        ("tab:qwen3vl8b", "divprune", 512, "InfoVQA", "46.0"),
        ("tab:llava-video", "hiprune", 1024, "Video-MME", "53.8"),
        ("tab:mvbench_details", "cdpruner", 2048, "unexpected action", "79.0"),
        ("tab:mvbench_details", "eadp", 4096, "action antonym", "66.5"),
        ("tab:llava-1.5-13b", "sparsevlm", 64, "VQAv2", "71.7"),
        ("tab:llava-1.5-13b", "dart", 32, "MMBench-CN", "56.4"),
        ("tab:llava-next-13b", "trim", 160, "ScienceQA-IMG", "67.0"),
        ("tab:llava-next-13b", "prumerge", 640, "GQA", "61.9"),
        ("tab:qwen2.5-vl-3b", "divprune", 256, "AI2D", "75.5"),
        ("tab: efficiency", "cdpruner", 32, "latency", "137.46"),
        ("tab:efficiency-llava-1.6", "hiprune", 320, "prefill", "176.5"),
        ("tab:efficiency-qwen2.5-vl", "hiprune", 128, "latency", "2591.7"),
        ("tab:wall-time-clock", "eadp", 512, "facility location", "143.73"),
        ("tab:wall-time-clock", "eadp", 256, "pruned prefill ±", "3.64"),
    ],
)
def test_figures_typed_by_hand(label, method, keep, column, figure):
    assert paper.table(label).find_row(method, keep).printed[column] == figure


@pytest.mark.parametrize(
    ("label", "setting", "column", "figure"),
    [
        ("tab:ablation-128", "mu=0.0", "POPE", "84.6"),
        ("tab:ablation-128", "q=0.9", "MME", "1411.0"),
        ("tab:ablation-128", "aggregation=topk", "VizWiz-val", "57.1"),
        ("tab:ablation-128", "beta=10.0", "VizWiz-val", "56.8"),
        ("tab:ablation-128", "dispersion=variance", "POPE", "87.3"),
        ("tab:temp_ablation", "tau=0.002", "MME", "1397.4"),
        ("tab:temp_ablation", "gamma=0.002", "MME", "1445.2"),
        ("tab:dynamic-allocation", "allocation=importance", "VizWiz-val", "60.2"),
    ],
)
def test_ablations_typed_by_hand(label, setting, column, figure):
    row = next(row for row in paper.table(label).rows if row.setting == setting)
    assert row.printed[column] == figure


def test_figures_of_a_model():
    found = paper.figures("LLaVA-1.5-7B", 128, "eadp")
    assert found["GQA"] == 60.0
    assert found["average"] == 63.5
    assert paper.figures("llava-hf/llava-1.5-7b-hf", 128, "eadp") == found
    assert paper.figures("llava-1.5-7b", 128 / 576, "eadp") == found
    assert paper.figures("qwen3-vl-8b")["TextVQA"] == 83.8
    assert paper.figures("llava-1.5-7b", 32, "fastv") == {}
    assert paper.figures("pocket", 32, "eadp") == {}


def test_methods_of_the_tables_exist_in_the_library():
    for table in paper.tables():
        for row in table.rows:
            assert row.method in (*list_methods(), paper.ALL_TOKENS)
            assert row.method == paper.ALL_TOKENS or row.method in layout.METHOD_TITLES
        assert table.caption
        assert table.unit(table.columns[0])


def run(*arguments):
    return CliRunner().invoke(app, ["paper", *arguments], env={"COLUMNS": "60"})


def test_command_prints_every_figure_in_the_layout_of_the_paper():
    output = run().output
    for table in paper.tables():
        assert table.label in output
        for row in table.rows:
            for figure in row.printed.values():
                assert figure in output
    assert "50.1/55.6*" in output
    assert "109.6 (×1.9)" in output
    assert "37.28 ± 1.28" in output
    assert "β = 10.0" in output
    assert "…" not in output


def test_command_accepts_a_model_or_a_label():
    both = run("qwen/qwen2.5-vl-3b-instruct").output
    assert "[tab:qwen2.5-vl-3b]" in both
    assert "[tab:efficiency-qwen2.5-vl]" in both
    assert "[tab:llava-1.5]" not in both
    assert "| 128 | CDPruner | 44.7 |" in run("qwen2.5-vl", "--markdown").output
    wrong = run("llava-9")
    assert wrong.exit_code == 2
    assert "llava-1.5-7b" in wrong.output.replace("\n", " ")
