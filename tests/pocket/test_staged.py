"""EADP over time on the staged clips, encoded by the pocket model: tokens by frame against what the clips show."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from eadp import EADP, Selection, TextGuide, VisualTokens, attach, pocket
from eadp.core.boxes import cells_in_boxes
from eadp.models.prompt import build_inputs
from eadp.pocket.world import render_image
from eadp.pocket.world.staged import FRAMES, StagedClip, staged_clips

CLIPS = {clip.name: clip for clip in staged_clips()}
KEEP = 128


@dataclass(frozen=True)
class Recorder(EADP):
    """EADP that also records what it was given."""

    def select(self, tokens: VisualTokens, text: TextGuide | None = None) -> Selection:
        RECORDED.append((tokens, text))
        return super().select(tokens, text)


RECORDED: list[tuple[VisualTokens, TextGuide | None]] = []


@pytest.fixture(scope="module")
def selections() -> dict[tuple[str, int], Selection]:
    """The selection on each clip with each `time`."""
    model, processor = pocket.load()
    found = {}
    for clip in CLIPS.values():
        RECORDED.clear()
        with torch.inference_mode(), attach(model, processor, method=Recorder(keep=1)):
            for scene in clip.frames:
                model(**build_inputs(processor, [render_image(scene)], [clip.question]), logits_to_keep=1)
        frames = [tokens for tokens, _ in RECORDED]
        features, aligned = (torch.cat([getattr(each, name) for each in frames]) for name in ("features", "aligned"))
        clip_tokens = VisualTokens(features, aligned, [each.grids[0] for each in frames], is_clip=True)
        for time in (0, 2):
            found[clip.name, time] = EADP(keep=KEEP, time=time).select(clip_tokens, RECORDED[0][1])
    return found


def different_cells(selection: Selection) -> int:
    return len(set((selection.indices % (selection.total // FRAMES)).tolist()))


def cells_on_thing(selection: Selection, clip: StagedClip) -> int:
    """The number of different cells of the thing in question that have a token in some frame that shows it."""
    cells = selection.total // FRAMES
    side = int(cells**0.5)
    kept = {divmod(index, cells) for index in selection.indices.tolist()}
    inside = {frame: cells_in_boxes((side, side), [clip.frames[frame].things[-1].box]) for frame in clip.answering}
    return len({cell for frame, cell in kept if frame in inside and inside[frame][cell]})


def mean_quota(selection: Selection, frames: range) -> float:
    return sum(selection.quotas[frame] for frame in frames) / len(frames)


@pytest.mark.slow
def test_a_still_camera_pays_once_and_spends_the_rest_on_other_cells(selections):
    alone, over = selections["still", 0], selections["still", 2]
    assert set(alone.quotas) == {KEEP // FRAMES}
    assert different_cells(over) > 4 * different_cells(alone)
    assert sum(quota == 0 for quota in over.quotas) >= FRAMES // 4
    assert over.coverage > alone.coverage


@pytest.mark.slow
def test_a_panning_camera_needs_tokens_all_the_time(selections):
    quotas = selections["panning", 2].quotas
    assert min(quotas) >= 1
    assert sum(quota > 0 for quota in quotas) > sum(quota > 0 for quota in selections["still", 2].quotas)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["one event", "two events"])
def test_the_frames_that_answer_get_more_and_more_of_the_thing_is_kept(selections, name):
    alone, over = selections[name, 0], selections[name, 2]
    assert mean_quota(over, CLIPS[name].answering) > 1.5 * KEEP / FRAMES
    assert cells_on_thing(over, CLIPS[name]) > 1.3 * cells_on_thing(alone, CLIPS[name])
    assert different_cells(over) > 2 * different_cells(alone)
    assert over.coverage > alone.coverage


@pytest.mark.slow
def test_the_question_decides_which_of_two_events_gets_more(selections):
    over = selections["two events", 2]
    other_event = range(2, 5)
    assert mean_quota(over, CLIPS["two events"].answering) > mean_quota(over, other_event)
