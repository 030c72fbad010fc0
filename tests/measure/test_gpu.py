"""`eadp bench --gpu`, as far as it runs without a GPU: on the CPU, with the kernels in Triton's interpreter."""

import json

import pytest
import torch
from typer.testing import CliRunner

from eadp.cli import app
from eadp.core import facility_location, token_similarity
from eadp.measure import gpu
from eadp.measure.loops import loop_that_reads_back, published_loop

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def test_without_a_gpu_a_sentence_says_so(tmp_path):
    result = CliRunner().invoke(app, ["bench", "--gpu", "--out", str(tmp_path)], env={"COLUMNS": "200"})
    assert result.exit_code == 1
    assert "There is no CUDA or ROCm GPU here" in result.output
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def report():
    return gpu.measure_gpu(
        repeats=1,
        cases=[(1, (4, 4), 3), (2, (3, 3), 2)],
        model="random:tiny-llava",
        layers=None,
        keep=2,
        samples=1,
        dtype="float32",
        device=torch.device("cpu"),
    )


def test_selections_and_prefills_are_timed_next_to_other_loops(report):
    assert [(row["blocks"], row["n"], row["k"]) for row in report.selections] == [(1, 16, 3), (2, 9, 2)]
    for row in report.selections:
        assert set(row["ms"]) == {"triton", "torch", "published loop", "loop that reads back"}
        assert all(ms > 0 for ms in row["ms"].values())
    assert list(report.prefills) == ["all tokens", *(f"EADP, {name}" for name in gpu.SOLVERS)]
    assert all(ms > 0 for ms in report.prefills.values())


def test_the_command_prints_the_tables_and_writes_the_file(report, tmp_path, monkeypatch):
    row = {"blocks": 1, "n": 1024, "k": 128, "ms": dict.fromkeys(gpu.SOLVERS, 1.28)}
    made = gpu.GpuReport("NVIDIA Test 9000 (TM)", [row, *report.selections], report.prefills, report.model)
    monkeypatch.setattr(gpu, "measure_gpu", lambda **options: made)
    result = CliRunner().invoke(app, ["bench", "--gpu", "--out", str(tmp_path)], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    for text in ("10.0", "281 µs", "EADP, triton", "open an issue of this project and attach the file"):
        assert text in result.output
    written = json.loads((tmp_path / "gpu-nvidia-test-9000-tm.json").read_text())
    assert written["card"] == "NVIDIA Test 9000 (TM)"
    assert written["selections"][0] == row
    assert written["prefills_ms"] == report.prefills
    assert written["torch"] == torch.__version__


def test_other_picks_than_the_cpus_are_an_error(monkeypatch):
    monkeypatch.setattr(gpu, "solve_facility", lambda *arguments: type("Wrong", (), {"order": torch.zeros(1, 3)}))
    with pytest.raises(ValueError, match="torch picked other tokens than the CPU at 16 tokens, K = 3"):
        gpu.measure_gpu(cases=[(1, (4, 4), 3)], device=torch.device("cpu"))


@pytest.mark.parametrize("loop", [published_loop, loop_that_reads_back])
def test_the_other_loops_make_the_same_picks(loop):
    matrices, weights = gpu.make_problem(3, (5, 5))
    together = loop(matrices, weights, 6)
    for picks, matrix, weight in zip(together, matrices, weights, strict=True):
        expected = facility_location(matrix, weight, 6).indices
        assert picks.tolist() == loop(matrix, weight, 6).tolist() == expected.tolist()
    assert torch.equal(matrices[0], token_similarity(gpu.image_like(5, 5, 64, 0)))
