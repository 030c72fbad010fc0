"""A prefill on a pretend GPU: it launches few kernels, waits for none of them, and keeps what the CPU keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from helpers import tiny
from helpers.prefill_counts import INPUTS, METHODS, QUESTIONS, count_prefill, prefill_on_cpu, tiny_inputs
from helpers.prefill_counts import arguments as arguments_of
from helpers.pretend_device import STOCK, Counts, module_on_device, on_device, pretend_device, read
from helpers.table_of_prefills import read_table

import eadp
from eadp.core import Selection, TextGuide, VisualTokens
from eadp.methods.inside import Cut, LayerView
from eadp.models import adapter_of
from eadp.runtime import compact

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # The interpreter multiplies what the kernel masks.

TABLE = read_table()
WITH_NEWLINES = ("llava_next", "llava_next_video", "llava_onevision")
FAST = ("llava", "llava_next")
MOST_LAUNCHES = 60


def cells(fast: bool) -> list[Any]:
    """The cells of the table: those of families whose table is quick to count, or all others, marked as slow."""
    marks = () if fast else (pytest.mark.slow,)
    return [
        pytest.param(*cell, marks=marks, id="-".join(cell))
        for cell in TABLE
        if (cell[0] in FAST and cell[1] != "64 frames") == fast
    ]


@pytest.mark.parametrize(("family", "inputs", "method"), [*cells(fast=True), *cells(fast=False)])
def test_launches_and_waits_are_those_of_the_table_and_the_picks_those_of_the_cpu(
    family: str, inputs: str, method: str
) -> None:
    counted = count_prefill(family, inputs, method)
    assert (counted.launches, counted.waits) == TABLE[family, inputs, method], counted.pruned.describe()
    selections, logits = prefill_on_cpu(family, inputs, method)
    for there, here in zip(counted.selections, selections, strict=True):
        assert there.indices.tolist() == here.indices.tolist()
        assert there.quotas == here.quotas
        assert there.notes == here.notes
        assert there.newlines == here.newlines
        assert there.per_layer == here.per_layer
        assert there.coverage == pytest.approx(here.coverage, abs=1e-5)
        assert there.bound == pytest.approx(here.bound, abs=1e-5)
        assert (there.order is None) == (here.order is None)
        assert there.order is None or there.order.tolist() == here.order.tolist()
    torch.testing.assert_close(counted.logits, logits, atol=2e-3, rtol=1e-3)


def test_the_table_has_every_family_and_method() -> None:
    families, methods = {family for family, _, _ in TABLE}, {method for _, _, method in TABLE}
    assert families == {*tiny.FAMILIES}
    assert methods == {*METHODS}
    assert {inputs for _, inputs, _ in TABLE} == {*INPUTS}


def test_every_family_that_takes_clips_has_a_row_for_64_frames() -> None:
    takes_clips = {family for family in tiny.FAMILIES if "video" in adapter_of(tiny.model(family)).geometry.modalities}
    assert takes_clips == {family for family, inputs, _ in TABLE if inputs == "64 frames"}


@pytest.mark.parametrize("method", METHODS)
def test_launches_do_not_grow_with_images_prompts_or_tokens(method: str) -> None:
    def launches(inputs: str, **settings: Any) -> int:
        return count_prefill("llava", inputs, method, **settings).launches

    assert launches("6 images") == launches("2 images")
    assert launches("6 prompts") == launches("2 prompts")
    assert launches("2 images", keep=3) == launches("2 images", keep=9)


def test_launches_do_not_grow_with_blocks() -> None:
    """Frames are blocks: a clip of 64 of them launches no more than an image of five crops."""
    for method in METHODS:
        crops, frames = (TABLE["llava_onevision", inputs, method][0] for inputs in ("five crops", "64 frames"))
        assert frames <= crops + 6, method


def test_generate_reads_the_prompts_before_the_vision_tower_runs() -> None:
    model, inputs = module_on_device(tiny.model("llava")), tiny_inputs("llava", "batch of 4")
    before: list[int] = []

    def own_waits() -> int:
        return counts.waits.total() - counts.waits[STOCK]

    hook = model.model.vision_tower.register_forward_pre_hook(lambda *_: before.append(own_waits()))
    asked = {**_asked("eadp", model), "question": QUESTIONS}
    with eadp.attach(model, tiny.tokenizer(), **asked), pretend_device() as counts:
        model.generate(**on_device(inputs), max_new_tokens=3, min_new_tokens=3, do_sample=False)
    hook.remove()
    assert before == [2], "ids and mask"
    assert own_waits() == 2, counts.describe()


def test_nothing_waits_but_for_newlines_that_depend_on_the_choice() -> None:
    for (family, inputs, method), (_, waits) in TABLE.items():
        may_wait = family in WITH_NEWLINES and method in ("divprune", "fastv")
        assert waits <= may_wait, (family, inputs, method)


def test_launches_keep_within_the_limit() -> None:
    over = {cell: launches for cell, (launches, _) in TABLE.items() if launches > MOST_LAUNCHES}
    assert not over


@pytest.mark.parametrize("family", FAST)
@pytest.mark.parametrize("inputs", ["one image", "batch of 4"])
@pytest.mark.parametrize("keep", [None, 4])
def test_a_coverage_costs_one_wait_and_keeps_what_the_cpu_keeps(family: str, inputs: str, keep: int | None) -> None:
    counted = count_prefill(family, inputs, "eadp", keep=keep, coverage=0.9)
    assert counted.waits == 1, counted.pruned.describe()
    assert counted.launches <= MOST_LAUNCHES, counted.pruned.describe()
    selections, logits = prefill_on_cpu(family, inputs, "eadp", keep=keep, coverage=0.9)
    for there, here in zip(counted.selections, selections, strict=True):
        assert there.order.tolist() == here.order.tolist()
        assert (there.quotas, there.notes) == (here.quotas, here.notes)
        assert there.coverage == pytest.approx(here.coverage, abs=1e-5)
        assert there.bound == pytest.approx(here.bound, abs=1e-5)
    torch.testing.assert_close(counted.logits, logits, atol=2e-3, rtol=1e-3)


def test_a_value_that_is_read_back_is_counted_as_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: an `.item()` put back into the compaction of a prefill is found, and its line is named."""
    build = compact.Compaction.from_counts.__func__

    def read_back(cls: Any, keep: torch.Tensor, *others: Any) -> Any:
        assert int(keep.sum().item()) > 0
        return build(cls, keep, *others)

    monkeypatch.setattr(compact.Compaction, "from_counts", classmethod(read_back))
    counted = count_prefill("llava", "one image", "divprune")
    assert counted.waits == 1
    assert TABLE["llava", "one image", "divprune"][1] == 0


def test_input_that_is_not_finite_raises_where_the_result_is_read() -> None:
    inputs = dict(tiny_inputs("llava", "one image"))
    inputs["pixel_values"] = torch.full_like(inputs["pixel_values"], torch.nan)
    model = module_on_device(tiny.model("llava"))
    with (
        eadp.attach(model, tiny.tokenizer(), method="divprune", keep=5) as pruned,
        pretend_device(),
    ):
        model(**on_device(inputs))
        with pytest.raises(ValueError, match="NaN or infinity"):
            _ = pruned.last
    on_cpu = tiny.model("llava")
    with eadp.attach(on_cpu, tiny.tokenizer(), method="divprune", keep=5), pytest.raises(ValueError, match="finite"):
        on_cpu(**inputs)


def count_decode_steps(method: str, inputs: str, **forward: Any) -> list[Counts]:
    """Count two decode steps after a prefill, with or without the mask of the prompts."""
    prompts = dict(tiny_inputs("llava", inputs))
    mask = prompts.pop("attention_mask")
    rows = len(mask)
    model = module_on_device(tiny.model("llava"))
    asked = {**_asked(method, model), "question": QUESTIONS[:rows]} if method == "eadp" else _asked(method, model)
    steps = []
    with eadp.attach(model, tiny.tokenizer(), **asked):
        with pretend_device():
            given = {"attention_mask": on_device(mask)} if forward["masked"] else {}
            cache = model(**on_device(prompts), **given, use_cache=True).past_key_values
        for _ in range(2):
            mask = torch.cat([mask, torch.ones(rows, 1, dtype=mask.dtype)], dim=1)
            token = on_device(torch.full((rows, 1), 7))
            given = {"attention_mask": on_device(mask)} if forward["masked"] else {}
            if forward["placed"]:
                given["position_ids"] = on_device(mask.cumsum(1)[:, -1:] - 1)
            with pretend_device() as counts:
                model(input_ids=token, past_key_values=cache, **given)
            steps.append(counts)
    return steps


@pytest.mark.parametrize("placed", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("inputs", ["one image", "batch of 4"])
@pytest.mark.parametrize("method", ["eadp", "fastv"])
def test_a_decode_step_launches_at_most_one_kernel_and_waits_for_none(
    method: str, inputs: str, masked: bool, placed: bool
) -> None:
    for counts in count_decode_steps(method, inputs, masked=masked, placed=placed):
        assert counts.launches.total() - counts.launches[STOCK] <= 1, counts.describe()
        assert counts.waits.total() == counts.waits[STOCK], counts.describe()


def _asked(method: str, model: Any) -> dict[str, Any]:
    asked = {**arguments_of("llava", "one image", method)}
    if "guide" in asked:
        asked["guide"] = eadp.models.guides.EmbeddingGuide(model.get_input_embeddings(), tiny.tokenizer())
    return asked


@dataclass(frozen=True)
class FirstTokens(eadp.methods.DivPrune):
    """A method that selects in its own way, derived from one that selects from all images at once on a device."""

    def select(self, tokens: VisualTokens, text: TextGuide | None = None) -> Selection:
        return Selection(torch.arange(self.count_to_keep(len(tokens))), len(tokens), self.name)


@dataclass(frozen=True)
class FirstInside(eadp.methods.FastV):
    """The same between the layers of the language model."""

    def choose(self, cut: Cut, view: LayerView) -> Selection:
        return Selection(torch.arange(cut.keep), len(view.visual), self.name)


@pytest.mark.parametrize("method", [FirstTokens(keep=5), FirstInside(keep=5)])
def test_a_subclass_with_its_own_selection_is_asked_on_a_device_too(method: eadp.methods.Method) -> None:
    model = module_on_device(tiny.model("llava"))
    with eadp.attach(model, tiny.tokenizer(), method=method) as pruned, pretend_device():
        model(**on_device(tiny_inputs("llava", "batch of 4")))
        assert [read(each.indices).tolist() for each in pruned.last] == [[0, 1, 2, 3, 4]] * 4


def test_figures_are_computed_when_they_are_asked_for() -> None:
    model = module_on_device(tiny.model("llava"))
    with eadp.attach(model, tiny.tokenizer(), **_asked("eadp", model)) as pruned:
        with pretend_device():
            model(**on_device(tiny_inputs("llava", "one image")))
        with pretend_device() as counts:
            (selection,) = pruned._results.last.selections
            assert not counts.waits
            torch.ones(1, device="cuda:0")
            assert 0 <= selection.coverage <= selection.bound
            assert sum(selection.quotas) == len(read(selection.order)) == 5
        assert counts.waits
