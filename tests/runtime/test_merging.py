"""Merged rows: which rows the language model receives, in which order and at which positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from helpers import tiny
from helpers.prompts import Sizes
from helpers.simple_methods import Guide
from torch import Tensor

import eadp
from eadp.core import Selection, TextGuide, VisualTokens
from eadp.methods import BeforeMethod, Method, get_method_class
from eadp.models import adapter_of
from eadp.runtime.attach import Pruned

MERGERS = ("visionzip", "prumerge", "trim")
BEFORE: dict[str, tuple[str, Sizes]] = {
    "llava": ("llava", [[(28, 28)]]),
    "llava_next": ("llava_next", [[(56, 56)]]),
    "llava_next unpadded": ("llava_next", [[(30, 50)]]),
    "llava_next_video": ("llava_next_video", [[(30, 50)]]),
    "llava_next_video clip": ("llava_next_video", [[(3, 28, 28)]]),
    "llava_onevision": ("llava_onevision", [[(30, 50)]]),
    "paligemma": ("paligemma", [[(16, 16)]]),
    "qwen2_5_vl": ("qwen2_5_vl", [[(24, 40)]]),
    "qwen2_5_vl clip": ("qwen2_5_vl", [[(2, 16, 24)]]),
    "qwen3_vl": ("qwen3_vl", [[(24, 40)]]),
}
AFTER: dict[str, tuple[str, Sizes]] = {
    "llava_onevision scaled down": ("llava_onevision", [[(100, 100)]]),
    "llava_onevision clip": ("llava_onevision", [[(3, 28, 28)]]),
    "gemma3": ("gemma3", [[(32, 32)]]),
    "internvl": ("internvl", [[(24, 48)]]),
    "idefics3": ("idefics3", [[(48, 48)]]),
}


@dataclass(frozen=True)
class Received:
    """What the language model receives for one image.

    Attributes:
        rows: The image's rows, in order.
        before: N×d, the image's rows without pruning, in the order of the tokens.
        tokens: N, the column of the prompt of each token.
        columns: The columns that `rows` fill.
    """

    pruned: Pruned
    selection: Selection
    rows: Tensor
    before: Tensor
    tokens: Tensor
    columns: Tensor
    deepstack: list[Tensor]


def receive(family: str, sizes: Sizes, method: str | Method, **settings: Any) -> Received:
    model, inputs, calls = tiny.model(family), tiny.inputs(family, sizes), []
    needs = get_method_class(method).needs if isinstance(method, str) else method.needs
    if "text" in needs:
        settings |= {"guide": Guide("tower" if family.startswith("llava") else "language"), "question": "Which?"}

    def call() -> dict[str, Any]:
        text = adapter_of(model).text_model
        handle = text.register_forward_pre_hook(lambda _, args, kwargs: calls.append(kwargs), with_kwargs=True)
        try:
            model(**inputs)
        finally:
            handle.remove()
        return calls.pop()

    unpruned = call()
    with eadp.attach(model, method=method, **settings) as pruned:
        shortened = call()
    clip = "pixel_values_videos" in inputs
    placeholder = inputs["input_ids"][0] == getattr(model.config, "video_token_id" if clip else "image_token_id")
    (one,), (selection,) = pruned.images, pruned.last
    tokens = placeholder.nonzero().flatten()[one.slots]
    columns = (placeholder & pruned.columns[0]).nonzero().flatten()
    physical = pruned.columns[0].cumsum(0)[columns] - 1
    return Received(
        pruned,
        selection,
        shortened["inputs_embeds"][0, physical],
        unpruned["inputs_embeds"][0, tokens],
        tokens,
        columns,
        shortened.get("deepstack_visual_embeds") or [],
    )


def merge_and_project(family: str, sizes: Sizes, given: Received) -> Tensor:
    """Merge the tower's rows and apply the model's projector.

    The tower's row of a token is the one that the projector maps to the token's features.
    """
    model, inputs, calls = tiny.model(family), tiny.inputs(family, sizes), []
    qwen = family.startswith("qwen")
    projector = model.base_model.get_submodule("visual.merger" if qwen else "multi_modal_projector")
    handle = projector.register_forward_hook(lambda _, args, output: calls.append((args[0], output)))
    outputs = []
    for modality, pixels in (("image", "pixel_values"), ("video", "pixel_values_videos")):
        if pixels in inputs:
            arguments = {key: inputs[key] for key in (f"{modality}_grid_thw", "image_sizes") if key in inputs}
            outputs.append(getattr(model.base_model, f"get_{modality}_features")(inputs[pixels], **arguments))
    handle.remove()
    ((taken, made),) = calls
    patches = 4 if qwen else 1
    taken, made = taken.reshape(-1, patches * taken.shape[-1]), made.reshape(-1, made.shape[-1])
    same = (given.before[:, None] == made).all(-1)
    assert (same.sum(1) == 1).all()
    sources = taken[same.float().argmax(1)]
    merge = given.selection.merge
    if merge.shape[1] > len(sources):
        sources = torch.cat([sources, outputs[0].hidden_states[-2][:, 0]])
    mixed = merge @ sources
    return projector(mixed.reshape(patches * len(mixed), -1))


@pytest.mark.parametrize("name", MERGERS)
@pytest.mark.parametrize("case", BEFORE)
def test_merged_rows_pass_through_the_projector_of_the_model(case: str, name: str) -> None:
    family, sizes = BEFORE[case]
    given = receive(family, sizes, name, keep=7)
    selection = given.selection
    assert selection.merge_space == "tower"
    assert not any("after the projector" in note for note in selection.notes)
    assert len(given.rows) == len(selection) == (8 if name == "trim" else 7)
    torch.testing.assert_close(given.rows, merge_and_project(family, sizes, given), rtol=1e-4, atol=1e-4)
    # A token that absorbs nothing is bit for bit the row of the unpruned model.
    alone = (selection.merge[:, : selection.total] == 1).any(1) & ((selection.merge != 0).sum(1) == 1)
    assert bool(alone.any()) == (name != "prumerge")
    assert torch.equal(given.rows[alone], given.before[selection.rows[alone]])
    has_cls = family in ("llava", "llava_next", "llava_next_video")
    assert (selection.merge.shape[1] > selection.total) == (name == "visionzip" and has_cls)


@pytest.mark.parametrize("name", MERGERS)
@pytest.mark.parametrize("case", AFTER)
def test_rows_are_merged_after_a_projector_that_does_not_map_single_rows(case: str, name: str) -> None:
    given = receive(*AFTER[case], name, keep=7)
    assert given.selection.merge_space == "features"
    assert any("after the projector" in note for note in given.selection.notes)
    torch.testing.assert_close(given.rows, given.selection.merge @ given.before, rtol=1e-4, atol=1e-4)


def test_rows_stay_within_their_tiles() -> None:
    """Idefics3 has separator tokens between its tiles, so each tile's columns hold rows of that tile."""
    given = receive(*AFTER["idefics3"], "visionzip", keep=13)
    (one,) = given.pruned.images
    owner = torch.repeat_interleave(torch.tensor([rows * columns for rows, columns in one.grids]))
    at = {int(column): int(owner[token]) for token, column in enumerate(given.tokens)}
    assert [at[int(column)] for column in given.columns] == owner[given.selection.rows].tolist()


@pytest.mark.parametrize("name", MERGERS)
def test_with_kept_positions_rows_take_the_columns_of_their_tokens(name: str) -> None:
    """A row that stands for no token takes the remaining column."""
    for family, sizes in (BEFORE["llava_next"], BEFORE["qwen3_vl"]):
        renumbered = receive(family, sizes, name, keep=0.4)
        kept = receive(family, sizes, name, keep=0.4, positions="keep")
        assert torch.equal(kept.columns, renumbered.columns)
        rows = renumbered.selection.rows
        own = rows >= 0
        where = torch.searchsorted(kept.columns, kept.tokens[rows[own]])
        assert torch.equal(kept.columns[where], kept.tokens[rows[own]])
        assert torch.equal(kept.rows[where], renumbered.rows[own])
        left = torch.ones(len(rows), dtype=torch.bool)
        left[where] = False
        assert torch.equal(kept.rows[left], renumbered.rows[~own])
        # TRIM's rows are in the order of their positions in both cases, except for the mean.
        assert name == "trim" or not torch.equal(kept.rows, renumbered.rows)


@pytest.mark.parametrize("positions", ["renumber", "keep"])
@pytest.mark.parametrize("name", MERGERS)
def test_deepstack_features_are_merged_after_their_own_projectors(name: str, positions: str) -> None:
    """They are merged by the same weights and in the same order as the rows."""
    family, sizes = BEFORE["qwen3_vl"]
    given = receive(family, sizes, name, keep=5, positions=positions)
    inputs, base = tiny.inputs(family, sizes), tiny.model(family).base_model
    features = base.get_image_features(inputs["pixel_values"], image_grid_thw=inputs["image_grid_thw"])
    order = torch.arange(len(given.rows))
    if positions == "keep":
        tokens = given.tokens[given.selection.rows.clamp(min=0)].where(given.selection.rows >= 0, -1)
        free = given.columns[~torch.isin(given.columns, tokens)]
        tokens[tokens < 0] = free
        order = tokens.argsort()
    assert len(given.deepstack) == 2
    for found, (layer,) in zip(given.deepstack, features.deepstack_features, strict=True):
        torch.testing.assert_close(found, (given.selection.merge @ layer)[order], rtol=1e-4, atol=1e-4)


def test_joined_crops_are_ordered_as_in_the_release() -> None:
    """LLaVA-NeXT with 2×2 crops: the whole image, then the mosaic's dominant patches from top to bottom and left to
    right, four CLS rows, and the contextual rows crop by crop."""
    given = receive(*BEFORE["llava_next"], "visionzip", keep=30, contextual=2)
    rows, merge = given.selection.rows, given.selection.merge
    assert given.selection.quotas == (6,) * 5
    assert rows[0] == -1
    assert (rows[1:6] < 16).all()
    dominant, classes, contextual = rows[6:].split([12, 4, 8])
    column = given.tokens[dominant]
    assert (column.diff() > 0).all()
    assert (dominant.diff() < 0).any(), "crops take turns"
    assert classes.tolist() == [-1] * 4
    assert torch.equal(merge[18:22, 80:], torch.eye(5)[1:])
    assert (contextual // 16).tolist() == [1, 1, 2, 2, 3, 3, 4, 4]


def test_without_keep_the_image_determines_the_number_of_rows() -> None:
    """PruMerge+ and TRIM then keep as many tokens as stand out, and add one row: a weighted sum or a mean."""
    for name in ("prumerge", "trim"):
        given = receive(*BEFORE["llava"], name)
        assert 1 < len(given.rows) == len(given.selection) < 16
        assert given.selection.rows[-1] == -1
        torch.testing.assert_close(given.rows, merge_and_project(*BEFORE["llava"], given), rtol=1e-4, atol=1e-4)


def test_gradients_reach_the_tower_through_merged_rows() -> None:
    """With keep=0.01 no token is kept, and the mean of all tokens is the only row of the image."""
    model, inputs = tiny.model("llava"), tiny.inputs("llava", [[(28, 28)]])
    weights = [
        model.base_model.vision_tower.encoder.layers[0].mlp.fc1.weight.requires_grad_(),
        model.base_model.multi_modal_projector.linear_1.weight.requires_grad_(),
    ]
    try:
        with eadp.attach(model, method="trim", keep=0.01, guide=Guide("tower"), question="Which?") as pruned:
            model(**inputs, labels=inputs["input_ids"]).loss.backward()
            assert len(pruned.last[0]) == 1
        assert all(weight.grad is not None and bool(weight.grad.any()) for weight in weights)
    finally:
        for weight in weights:
            weight.requires_grad_(False).grad = None


@dataclass(frozen=True)
class Misplaced(BeforeMethod):
    """A method whose `rows` or `merge_space` are invalid."""

    name = "test_misplaced"
    citation = "none"
    merges = True
    rows: tuple[int, ...] = ()
    space: str = "features"

    def select(self, tokens: VisualTokens, text: TextGuide | None = None) -> Selection:
        indices = torch.tensor([1, 4])
        rows = torch.tensor(self.rows) if self.rows else None
        return Selection(
            indices, len(tokens), self.name, merge=torch.ones(2, len(tokens)), merge_space=self.space, rows=rows
        )


@pytest.mark.parametrize("rows", [(1, 2), (1, 1), (1,)])
def test_rows_must_stand_for_kept_tokens(rows: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="which of the kept tokens it stands for"):
        receive(*BEFORE["llava"], Misplaced(rows=rows))


def test_a_method_that_merges_before_the_projector_must_request_the_tower_rows() -> None:
    with pytest.raises(ValueError, match="was given no rows of the tower"):
        receive(*BEFORE["llava"], Misplaced(space="tower"))
