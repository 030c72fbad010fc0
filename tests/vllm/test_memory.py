"""The engine takes the memory of selection, and compiles what it needs, before the first request."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from checkpoints import folder_of
from engines import ANSWER_LENGTH, Engine, Query, Transformers, random_image, random_question

CACHE_MIB = 3
QUESTION_TOKENS = 300
SERVER = {"keep": 0.25}

# The functions below run in the engine's process, which cannot import this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Engine, Transformers]]:
    """An engine that runs functions of this file, and its reference."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")
        folder = folder_of("llava_next", tmp_path_factory.mktemp("checkpoints"))
        server = {**SERVER, "cache_mib": CACHE_MIB, "max_question_tokens": QUESTION_TOKENS}
        engine = Engine(folder, server, max_num_seqs=4)
        yield engine, Transformers(folder)
        engine.close()


def ask(engine: Engine, reference: Transformers, query: Query) -> list[int]:
    (found,) = engine.answers([reference.prompt(query)], [query])
    return list(found.outputs[0].token_ids)


def in_worker(engine: Engine, function: Callable[..., Any], *arguments: Any) -> Any:
    (found,) = engine.llm.collective_rpc(function, args=arguments)
    return found


def look(worker: Any) -> dict[str, Any]:
    """What was profiled and reserved, and for how many types each loop of the selection is compiled."""
    from eadp.core import kernels

    model = worker.get_model()
    loops = {name: len(loop.signatures) for name, loop in vars(kernels).items() if hasattr(loop, "signatures")}
    return {"profile": model.eadp_profile, "reserved": model.eadp_features.reserved_bytes, "loops": loops}


def profile_again(worker: Any) -> dict[str, Any]:
    """Run vLLM's profiling, which is left out on CPUs with `enforce_eager`, and note the memory that is held."""
    model, runner, held = worker.get_model(), worker.model_runner, []
    keep_rows = model._keep_rows

    def watch(*arguments: Any) -> Any:
        held.append(model.eadp_features.reserved_bytes)
        return keep_rows(*arguments)

    model._keep_rows = watch
    try:
        runner.profile_run()
    finally:
        del model._keep_rows
    budget = runner.mm_budget
    return {
        "profile": model.eadp_profile,
        "held": held,
        "largest": budget.mm_max_toks_per_item["image"],
        "items": budget.mm_max_items_per_batch["image"],
    }


def test_the_engine_selects_once_before_the_first_request(both: tuple[Engine, Transformers]) -> None:
    engine, reference = both
    before = in_worker(engine, look)
    assert before["profile"] is not None
    assert before["reserved"] == CACHE_MIB << 20
    assert any(before["loops"].values())
    query = Query((random_image(1, 96, 56),), (random_question(1),))
    assert ask(engine, reference, query) == reference.answer(query, SERVER)[0]
    after = in_worker(engine, look)
    assert after["loops"] == before["loops"]
    assert after["reserved"] == 0


def test_the_profiling_run_has_the_largest_images_and_the_longest_question(both: tuple[Engine, Transformers]) -> None:
    found = in_worker(both[0], profile_again)
    profile = found["profile"]
    assert QUESTION_TOKENS - 2 <= profile.question_tokens <= QUESTION_TOKENS
    # The largest image's count includes newlines, which are not selected from.
    assert 0.8 * found["largest"] < profile.visual_tokens <= found["largest"]
    assert profile.encoded == found["items"]
    assert found["held"] == [CACHE_MIB << 20]


FAILURES = ["RuntimeError('out of memory')", "MemoryError()", "AssertionError()", "KeyError('x')"]


def fail_from_now_on(worker: Any, error: str) -> None:
    model = worker.get_model()
    failures: list[int] = []

    def fail(*arguments: Any) -> Any:
        raise eval(error)

    model._keep_rows = fail
    model.eadp_metrics.record_failure = lambda: failures.append(1)
    model.failures = failures


def recover(worker: Any) -> int:
    """Undo `fail_from_now_on`, and return how many failures were counted."""
    model = worker.get_model()
    count = len(model.failures)
    del model._keep_rows, model.eadp_metrics.record_failure, model.failures
    return count


@pytest.mark.parametrize(("seed", "error"), enumerate(FAILURES, start=60), ids=["memory", "host", "assert", "key"])
def test_a_failure_inside_the_selection_is_counted_and_the_request_answered(
    both: tuple[Engine, Transformers], seed: int, error: str
) -> None:
    engine, reference = both
    in_worker(engine, fail_from_now_on, error)
    query = Query((random_image(seed, 96, 56),), (random_question(2),), {"keep": 0.3})
    assert len(ask(engine, reference, query)) == ANSWER_LENGTH
    assert in_worker(engine, recover) == 1
    other = Query((random_image(seed + 100, 96, 56),), (random_question(3),))
    assert ask(engine, reference, other) == reference.answer(other, SERVER)[0]


START_WITH_A_FAILING_METHOD = """
import os, sys
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from engines import Engine
from eadp.runtime.choose import Chooser

def fail(*arguments, **settings):
    raise RuntimeError("no memory for the selection")

Chooser.select = fail
Engine(Path(sys.argv[1]), {"keep": 4}, distributed_executor_backend="uni")
"""


def test_a_server_whose_method_fails_does_not_start(tmp_path: Path) -> None:
    """A server that was asked to prune and cannot would keep evenly spread tokens of every image."""
    folder, here = folder_of("llava", tmp_path), Path(__file__).parent
    line = [sys.executable, "-c", START_WITH_A_FAILING_METHOD, str(folder), str(here), str(here.parent)]
    done = subprocess.run(line, stderr=subprocess.PIPE, text=True)
    assert done.returncode != 0
    assert "RuntimeError: no memory for the selection" in done.stderr
