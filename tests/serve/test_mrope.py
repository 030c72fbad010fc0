"""M-RoPE positions of pruned prompts, against those that the original models give to unpruned ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import tiny
from torch import Tensor

from eadp.serve.mrope import (
    POSITION_CHANNELS,
    PromptSpan,
    SpanLayout,
    compute_prompt_positions,
    fill_in_positions,
)

START, END = tiny.IDS["<|vision_start|>"], tiny.IDS["<|vision_end|>"]
PLACEHOLDERS = torch.tensor([tiny.IDS["<|image_pad|>"], tiny.IDS["<|video_pad|>"]])
FRAMES = 3


def layouts_of(family: str) -> list[SpanLayout]:
    """The layouts of the images and the clip of `prompt_of`."""
    images = [SpanLayout.from_grid([0], 3, 5), SpanLayout.from_grid([0], 6, 2)]
    if family == "qwen3_vl":
        # The clip of tests/helpers/tiny.py writes the number of a frame before it.
        return [
            *images,
            SpanLayout.from_frames([([tiny.IDS["0"] + frame, START], [END]) for frame in range(FRAMES)], 2, 3),
        ]
    return [*images, SpanLayout.from_grid([0, 0, 1], 2, 3)]


def prompt_of(family: str) -> tuple[Tensor, Tensor, int]:
    """Two images and a clip between text: token ids, the original model's positions, and its next position."""
    inputs = tiny.inputs(family, [[(24, 40), (48, 16), (FRAMES, 16, 24)]])
    base = tiny.model(family).base_model
    grids = {f"{name}_grid_thw": inputs[f"{name}_grid_thw"] for name in ("image", "video")}
    if family == "qwen2_5_vl":
        # The times of the frames are 0, 0.7 and 1.4, rounded down. Only while they do not exceed the sides of a frame
        # do transformers and vLLM agree on where the text after a clip starts.
        grids["second_per_grid_ts"] = torch.tensor([0.7 / base.config.vision_config.tokens_per_second])
    ids = inputs["input_ids"]
    positions, delta = base.get_rope_index(ids, mm_token_type_ids=inputs["mm_token_type_ids"], **grids)
    return ids[0], positions[-3:, 0], int(delta[0, 0]) + ids.shape[1]


def spans_in(ids: Tensor, layouts: list[SpanLayout]) -> list[int]:
    """The offset of each span in the unpruned prompt."""
    offsets, column = [], 0
    for layout in layouts:
        lead = int(layout.is_visual.nonzero()[0])
        offsets.append(column + int(torch.isin(ids[column:], PLACEHOLDERS).nonzero()[0]) - lead)
        column = offsets[-1] + len(layout)
    return offsets


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
@pytest.mark.parametrize("kept", [([1, 4, 7, 13], [0, 3, 11], [2, 3, 17]), ([0], [11], range(6, 12))])
def test_positions_of_kept_tokens_are_those_of_the_original_model(family: str, kept: Any) -> None:
    """Each token of a pruned prompt has the position that the original model gives it in the unpruned prompt."""
    ids, original, following = prompt_of(family)
    layouts = layouts_of(family)
    offsets = spans_in(ids, layouts)
    stays = torch.ones(len(ids), dtype=torch.bool)
    pruned_ids, spans, channels, column = [], [], [], 0
    for offset, layout, chosen in zip(offsets, layouts, kept, strict=True):
        columns = offset + layout.is_visual.nonzero().flatten()
        stays[columns] = False
        stays[columns[torch.tensor(list(chosen))]] = True
        left = layout.keep(torch.tensor(list(chosen)))
        placeholder = int(ids[columns[0]])
        pruned_ids += [ids[column:offset], left.gather_visual(placeholder)]
        spans.append(PromptSpan(sum(map(len, pruned_ids[:-1])), len(left), layout))
        channels.append(left.to_channels().bfloat16())
        column = offset + len(layout)
    pruned = torch.cat([*pruned_ids, ids[column:]])
    assert pruned.sort().values.equal(ids[stays].sort().values)
    is_placeholder = torch.isin(pruned, PLACEHOLDERS)
    positions, delta = compute_prompt_positions(len(pruned), spans)
    assert delta + len(pruned) == following

    whole = fill_in_positions(positions, is_placeholder, 0, channels)
    assert torch.equal(whole, original[:, stays])
    # In two chunks that split each span in turn, then again from the start.
    for number, span in enumerate(spans):
        for cut in range(1, span.length):
            first = [*channels[:number], channels[number][:cut]]
            once = fill_in_positions(positions, is_placeholder, 0, first)
            rest = [channels[number][cut:], *channels[number + 1 :]]
            twice = fill_in_positions(once, is_placeholder, span.offset + cut, rest)
            assert torch.equal(twice, whole)
    assert torch.equal(fill_in_positions(whole, is_placeholder, 0, channels), whole)


def test_a_pruned_prompt_may_be_renumbered() -> None:
    layout = SpanLayout.from_grid([0, 3], 4, 4)
    positions, delta = compute_prompt_positions(12, [PromptSpan(2, 5, layout)], renumber=True)
    assert positions.tolist() == [list(range(12))] * 3
    assert delta == 0
    channels = [layout.keep(torch.arange(5)).to_channels()]
    is_placeholder = torch.arange(12).clamp(2, 6) == torch.arange(12)
    assert torch.equal(fill_in_positions(positions, is_placeholder, 0, channels), positions)
    unpruned, _ = compute_prompt_positions(39, [PromptSpan(2, 32, layout)], renumber=True)
    assert unpruned[0, 34:].tolist() == [2 + 4 + each for each in range(5)]


def test_positions_survive_half_precision() -> None:
    layout = SpanLayout(torch.tensor([[70_000, 1], [255, 256], [0, 65_536]]), torch.tensor([7, -1]))
    numbers = layout.to_channels()
    assert numbers.shape == (2, POSITION_CHANNELS)
    assert numbers.max() < 256
    ids = torch.zeros(2, dtype=torch.bool)
    ids[1] = True
    start = torch.full((3, 2), -1)
    for dtype in (torch.bfloat16, torch.float16):
        assert torch.equal(fill_in_positions(start, ids, 0, [numbers.to(dtype)]), layout.coordinates)


def test_the_placeholders_of_a_clip_stand_in_its_first_frame() -> None:
    """How many tokens each frame keeps is not known when the prompt is made."""
    layout = SpanLayout.from_frames([([1, 2], [3]), ([4, 5], [6])], 1, 2)
    assert layout.token_ids.tolist() == [1, 2, -1, -1, 3, 4, 5, -1, -1, 6]
    assert layout.coordinates.tolist()[2] == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    kept = layout.keep(torch.tensor([1, 2, 3]))
    assert kept.token_ids.tolist() == [1, 2, -1, 3, 4, 5, -1, -1, 6]
    assert kept.gather_visual(99).tolist() == [1, 2, 99, 99, 99, 3, 4, 5, 6]
    assert layout.extent == 10
