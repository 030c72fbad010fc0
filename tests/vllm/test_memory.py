"""The engine takes the memory of selection, and compiles what it needs, before the first request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from checkpoints import folder_of
from engines import ANSWER_LENGTH, Engine, Query, Transformers, random_image, random_question

from eadp.core import kernels

CACHE_MIB = 3
QUESTION_TOKENS = 300


@pytest.fixture(scope="module")
def in_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Engine, Transformers]]:
    """An engine in this process, so that its model can be looked at."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        folder = folder_of("llava_next", tmp_path_factory.mktemp("checkpoints"))
        server = {"keep": 0.25, "cache_mib": CACHE_MIB, "max_question_tokens": QUESTION_TOKENS}
        engine = Engine(folder, server, distributed_executor_backend="uni", max_num_seqs=4)
        yield engine, Transformers(folder)


def runner_of(engine: Engine) -> Any:
    return engine.llm.llm_engine.model_executor.driver_worker.worker.model_runner


def compiled_loops() -> dict[str, int]:
    """The number of types for which each loop of the selection is compiled."""
    return {name: len(loop.signatures) for name, loop in vars(kernels).items() if hasattr(loop, "signatures")}


def test_the_engine_selects_once_before_the_first_request(in_process: tuple[Engine, Transformers]) -> None:
    engine, reference = in_process
    model = runner_of(engine).model
    assert model.eadp_profile is not None
    before, captured = compiled_loops(), model.eadp_features.reserved_bytes
    assert captured == CACHE_MIB << 20
    query = Query((random_image(1, 96, 56),), (random_question(1),))
    (found,) = engine.answers([reference.prompt(query)], [query])
    assert list(found.outputs[0].token_ids) == reference.answer(query, {"keep": 0.25})[0]
    assert compiled_loops() == before
    assert any(before.values())
    assert model.eadp_features.reserved_bytes == 0


def test_the_profiling_run_has_the_largest_images_and_the_longest_question(
    in_process: tuple[Engine, Transformers], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, _ = in_process
    runner = runner_of(engine)
    model = runner.model
    model.eadp_profile = None
    taken: list[int] = []
    keep_rows = model._keep_rows

    def watch(*args: Any) -> Any:
        taken.append(model.eadp_features.reserved_bytes)
        return keep_rows(*args)

    monkeypatch.setattr(model, "_keep_rows", watch)
    runner.profile_run()
    budget = runner.mm_budget
    profile = model.eadp_profile
    assert QUESTION_TOKENS - 2 <= profile.question_tokens <= QUESTION_TOKENS
    assert profile.visual_tokens >= budget.mm_max_toks_per_item["image"] * 0.9
    assert profile.encoded == budget.mm_max_items_per_batch["image"]
    assert taken == [CACHE_MIB << 20]


FAILURES = [RuntimeError("out of memory"), MemoryError(), AssertionError(), KeyError("x")]


@pytest.mark.parametrize(("seed", "error"), enumerate(FAILURES, start=60), ids=lambda value: type(value).__name__)
def test_a_failure_inside_the_selection_is_counted_and_the_request_answered(
    in_process: tuple[Engine, Transformers], monkeypatch: pytest.MonkeyPatch, seed: int, error: Exception
) -> None:
    engine, reference = in_process
    model, counted = runner_of(engine).model, []

    def fail(*args: Any) -> Any:
        raise error

    monkeypatch.setattr(model, "_keep_rows", fail)
    monkeypatch.setattr(model.eadp_metrics, "record_failure", lambda: counted.append(1))
    query = Query((random_image(seed, 96, 56),), (random_question(2),), {"keep": 0.3})
    prompt = reference.prompt(query)
    (found,) = engine.answers([prompt], [query])
    assert len(found.outputs[0].token_ids) == ANSWER_LENGTH
    assert counted == [1]
    monkeypatch.undo()
    other = Query((random_image(50, 96, 56),), (random_question(3),))
    (found,) = engine.answers([reference.prompt(other)], [other])
    assert list(found.outputs[0].token_ids) == reference.answer(other, {"keep": 0.25})[0]


def test_a_server_whose_method_fails_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that was asked to prune and cannot would keep evenly spread tokens of every image."""
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no memory for the selection")

    monkeypatch.setattr("eadp.runtime.choose.Chooser.select", fail)
    with pytest.raises(RuntimeError, match="no memory for the selection"):
        Engine(folder_of("llava", tmp_path), {"keep": 4}, distributed_executor_backend="uni")
