"""The video methods on small clips whose right answer is derived by hand; the golden vectors test the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import tiny
from torch import Tensor

import eadp
from eadp.core import Selection, TowerAttention, VisualTokens
from eadp.methods import BeforeMethod, get_method, get_method_class, list_methods
from eadp.methods.inside import scale_layers
from eadp.methods.video import VideoMethod
from eadp.models.llava_video import convert

VIDEO = [name for name in list_methods() if issubclass(get_method_class(name), VideoMethod)]
GRID = (2, 3)
SIZE = GRID[0] * GRID[1]
EYE = torch.eye(8)


def clip(frames: Tensor, attention: Tensor | None = None, grid: tuple[int, int] = GRID) -> VisualTokens:
    """Build a clip from T×n×d features; tokens with a lower index receive more attention, unless it is given."""
    features = frames.flatten(0, 1)
    received = torch.arange(len(features), 0, -1.0) if attention is None else attention.flatten()
    layer = TowerAttention(0, 1, torch.zeros(len(features), 1, 1), received=received)
    return VisualTokens(features, None, [grid] * len(frames), attention=[layer], is_clip=True)


def random_clip(frames: int, seed: int = 0) -> VisualTokens:
    generator = torch.Generator().manual_seed(seed)
    steps = torch.randn(frames, SIZE, 8, generator=generator) * torch.rand(frames, 1, 1, generator=generator)
    return clip(steps.cumsum(0), torch.rand(frames, SIZE, generator=generator))


@pytest.mark.parametrize("name", VIDEO)
@pytest.mark.parametrize("frames", [1, 2, 9])
def test_an_exact_count_is_exact(name: str, frames: int) -> None:
    tokens = random_clip(frames)
    for keep in (1, 2, 5, SIZE, frames * SIZE - 1, 0.1, 0.5, 0.9):
        if isinstance(keep, int) and not 1 <= keep < len(tokens):
            continue
        method = get_method(name, keep=keep).with_exact_count()
        assert isinstance(method, BeforeMethod)
        selection = method.select(tokens)
        assert len(selection) == method.count_to_keep(len(tokens)) == sum(selection.quotas)
        assert selection.merge is None or len(selection.merge) == len(selection)


def test_evs_keeps_the_first_frame_and_what_changes() -> None:
    first = EYE[:SIZE]
    second = first.clone()
    second[2] += EYE[7]  # changes a little
    third = second.clone()
    third[0], third[5] = EYE[6], EYE[7]  # change completely
    tokens = clip(torch.stack([first, second, third]))
    selection = eadp.EVS(keep=9).select(tokens)
    assert selection.indices.tolist() == [*range(6), 8, 12, 17]
    assert selection.quotas == (6, 1, 2)
    assert eadp.EVS(keep=8).select(tokens).quotas == (6, 0, 2)


def test_evs_keeps_at_least_one_frame_unless_the_count_is_exact() -> None:
    tokens = random_clip(3)
    assert eadp.EVS(keep=2).select(tokens).quotas == (6, 0, 0)
    exact = eadp.EVS(keep=2, exact=True).select(tokens)
    assert exact.quotas == (2, 0, 0)
    assert exact.notes == ("2 tokens are less than one frame of 6: they are an even sample of the first",)
    image = VisualTokens(torch.randn(8, 4), None, [(2, 2), (2, 2)])
    assert len(eadp.EVS(keep=4).select(image)) == 8
    assert eadp.EVS(keep=4, exact=True).select(image).quotas == (2, 2)


def test_vidcom2_gives_more_to_the_frame_that_is_unlike_the_others() -> None:
    frames = torch.randn(SIZE, 8, generator=torch.Generator().manual_seed(1)).expand(4, -1, -1).clone()
    frames[2] = -frames[2]
    quotas = eadp.VidCom2(keep=0.5).select(clip(frames)).quotas
    assert quotas[2] == max(quotas) > quotas[0] == quotas[1] == quotas[3]


def test_the_forms_of_vidcom2_differ_in_their_count() -> None:
    tokens = random_clip(7, seed=3)
    for share in (0.02, 0.3, 0.55):
        released, vllm = (len(eadp.VidCom2(keep=share, form=form).select(tokens)) for form in ("released", "vllm"))
        assert vllm == max(7, int(42 * share))
        assert abs(released - 42 * share) <= 7
    assert len(eadp.VidCom2(keep=0.02, exact=True).select(tokens)) == 1


def test_vcast_spends_on_frames_at_which_the_clip_turns() -> None:
    # There and back: the direction is reversed at both frames in the middle.
    tokens = clip(torch.stack([EYE[:1], EYE[1:2], EYE[:1], EYE[1:2]]).expand(-1, SIZE, -1))
    found = eadp.VCAST(keep=0.5).score(tokens)
    assert found.curvature.tolist() == pytest.approx([1, 2, 2, 1])
    # 8 tokens beyond the first of each frame, by the weights 0.097 and 0.403: 0.77 and 3.23. Both tokens that are left
    # over go to the first frame with the largest fraction.
    assert found.quotas.tolist() == [1 + 0 + 2, 1 + 3, 1 + 3, 1 + 0]
    assert eadp.VCAST(keep=0.5, at_least=3).score(tokens).quotas.tolist() == [3, 3, 3, 3]


def test_vcast_keeps_tokens_that_stand_out() -> None:
    frame = EYE[:1].repeat(SIZE, 1)
    frame[1], frame[4] = EYE[1], 3 * EYE[0]
    tokens = clip(torch.stack([frame, frame]))
    assert eadp.VCAST(keep=4).select(tokens).indices.tolist() == [1, 4, 7, 10]
    assert len(eadp.VCAST(keep=2).select(clip(frame[None]))) == SIZE
    assert eadp.VCAST(keep=2, exact=True).select(clip(frame[None])).indices.tolist() == [1, 4]


def test_floc_sends_what_repeats_once() -> None:
    frame = EYE[[0, 1, 2, 0, 1, 2]]
    selection = eadp.FLoC(keep=3).select(clip(torch.stack([frame, frame, frame])))
    assert selection.indices.tolist() == [0, 1, 2]
    assert selection.coverage == pytest.approx(1)


def test_fastvid_by_hand() -> None:
    """Two equal frames are one segment. Tokens 0 and 1 are salient; the anchor is in the last frame."""
    frame = EYE[[0, 1, 2, 2, 2, 3]] + 0.1
    tokens = clip(torch.stack([frame, frame]), torch.tensor([9.0, 8, 1, 1, 1, 1]).expand(2, -1))
    method = eadp.FastVID(keep=0.5, segments=1, context=0.4, beta=0.6)  # R = 3: 2 salient, 1 anchor per frame
    selection = method.select(tokens)
    assert selection.quotas == (2, 4)
    assert selection.indices.tolist()[:4] == [0, 1, 6, 7]
    anchors = selection.indices[4:] - SIZE
    assert len(anchors) == 2
    rows = selection.merge
    assert rows is not None
    assert torch.equal(rows[:4], torch.eye(12)[[0, 1, 6, 7]])
    torch.testing.assert_close(rows.sum(1), torch.ones(6))
    of_kind = next(row for row, place in zip(rows[4:], anchors.tolist(), strict=True) if place in (2, 3, 4))
    # Six tokens, three per frame, join it, itself included: 0.6 of the anchor, and 0.4/6 of each.
    assert sorted(of_kind[of_kind > 0].tolist()) == pytest.approx([0.4 / 6] * 5 + [0.6 + 0.4 / 6])


def sent(selection: Selection, tokens: VisualTokens) -> Tensor:
    assert selection.merge is not None
    return selection.merge @ tokens.features


def test_the_trees_of_flashvid_are_divided_by_their_direct_links() -> None:
    """In three equal frames, each token that is not selected is a chain of three: three times itself, halved."""
    frame = EYE[:SIZE]
    tokens = clip(torch.stack([frame] * 3))
    method = eadp.FlashVID(keep=0.5, expansion=1.0, alpha=0.34, segments=1)  # B = 3: 2 selected, 1 merged per frame
    selection = method.select(tokens)
    chosen = method.select_per_frame(tokens)
    assert chosen.shape == (3, 2)
    assert selection.quotas == (2 + 3, 2, 2)  # all trees begin in the first frame
    rows = sent(selection, tokens)
    is_tree = ~torch.isin(selection.indices, chosen)
    torch.testing.assert_close(rows[~is_tree], tokens.features[selection.indices[~is_tree]])
    # Three clusters share the four trees: two are single, and one is a mean of two.
    assert sorted(rows[is_tree].norm(dim=1).tolist()) == pytest.approx([1.5 / 2**0.5, 1.5, 1.5])


def test_flashvid_may_send_a_token_twice() -> None:
    """A segment of one frame clusters selected tokens too. The second row of a token has a slot of its own."""
    selection = eadp.FlashVID(keep=0.67, expansion=1.0).select(clip(EYE[:SIZE][None]))
    assert selection.rows is not None
    assert len(selection.indices.unique()) == len(selection) == 5
    rows = selection.rows.tolist()
    assert rows.count(-1) == 5 - len({*rows} - {-1})
    assert rows[0] >= 0


def test_holitom_merges_what_stands_still() -> None:
    moving, still = torch.randn(2, SIZE, 8, generator=torch.Generator().manual_seed(2))
    frames = torch.stack([still, still, still, moving, moving])
    frames[1, 0], frames[2, 0] = moving[0], -moving[0]
    tokens = clip(frames)
    method = eadp.HoliTom(keep=0.4)
    similar = torch.tensor([[0, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1], [0] * 6, [1] * 6], dtype=torch.bool)
    windows = method.divide(similar)
    assert windows.frames == [slice(0, 3), slice(3, 5)]
    assert windows.saved == 2 * 5 + 1 * 6
    selection = method.select(tokens)
    # 12 of 30 tokens are 6/7 of the 14 that differ: 4 of 5 static ones and 1 moving token per frame; then 5 of 6.
    assert selection.quotas == (4 + 1, 1, 1, 5, 0)
    assert selection.rows is not None
    assert selection.rows.tolist()[4:7] == [0, 6, 12]
    assert method.with_settings(order="position").select(tokens).rows is None
    torch.testing.assert_close(selection.merge.sum(1), torch.ones(12))
    assert method.with_settings(longest=1).divide(similar).saved == 0


@pytest.mark.parametrize("name", [*VIDEO, "floc"])
def test_positions_are_those_of_the_releases(name: str) -> None:
    method = get_method(name, keep=0.5)
    assert method.positions_for("qwen3_vl") == "keep"
    assert method.positions_for("llava_onevision") == ("keep" if name in ("vcast", "fastvid") else "renumber")


def test_newlines_of_llava_video() -> None:
    model, pixels = tiny.model("llava_onevision"), torch.randn(1, 3, 3, 28, 28)
    with convert(model):
        features = model.base_model.get_video_features(pixels, return_dict=True).pooler_output
        ids = torch.full((1, features.shape[1] + 2), tiny.IDS["<video>"])
        ids[:, 0], ids[:, -1] = 40, 41
        newlines, found = {}, {}
        for method in (eadp.VidCom2(keep=0.2), eadp.HoliTom(keep=0.2, order="position")):
            with eadp.attach(model, method=method) as pruned:
                model(input_ids=ids, pixel_values_videos=pixels)
            newlines[method.name], found[method.name] = pruned.last[0].newlines, pruned
    rows = len(found["vidcom2"].images[0].newline_slots)
    assert newlines["vidcom2"] == rows
    layout = found["holitom"].images[0]
    assert newlines["holitom"] == len(layout.newlines[found["holitom"].last[0].indices].unique()) < rows


def received_by_language_model(model: Any, run: Callable[[], object]) -> Tensor:
    """What the language model of a batch of one receives."""
    received = []
    # After the hooks of `attach`, which shorten the call.
    hook = model.base_model.language_model.register_forward_pre_hook(
        lambda module, args, kwargs: received.append(kwargs["inputs_embeds"][0]), with_kwargs=True
    )
    try:
        run()
    finally:
        hook.remove()
    return received[0]


@pytest.mark.parametrize("beams", [1, 2])
def test_vidcom2_puts_the_newlines_of_a_frame_after_its_tokens(beams: int) -> None:
    model = tiny.model("llava_onevision")
    pixels = torch.randn(1, 3, 3, 28, 28, generator=torch.Generator().manual_seed(0))
    with convert(model):
        features = model.base_model.get_video_features(pixels, return_dict=True).pooler_output[0]
        ids = torch.full((1, len(features) + 2), tiny.IDS["<video>"])
        ids[:, 0], ids[:, -1] = 40, 41
        inputs = {"input_ids": ids, "pixel_values_videos": pixels}

        def sent(method: Any, **settings: Any) -> tuple[Tensor, eadp.Pruned]:
            with eadp.attach(model, method=method, **settings) as pruned:
                options = {"num_beams": beams, "max_new_tokens": 2, "do_sample": False}
                return received_by_language_model(model, lambda: model.generate(**inputs, **options)), pruned

        method = eadp.VidCom2(keep=0.3)
        moved, pruned = sent(method)
        in_place, _ = sent(method, positions="keep")
        chained, _ = sent([method, eadp.FastV(keep=0.5, layers=(2,), budget="after_prune")])
    side = 3  # of a frame; one newline per row
    layout, kept, expected = pruned.images[0], pruned.last[0].indices, []
    newline = features[layout.newline_slots[:1]]
    for frame in range(3):
        here = kept[kept // side**2 == frame]
        expected += [features[layout.slots[here]], newline.expand(side, -1)]
    torch.testing.assert_close(moved[1:-1], torch.cat(expected))
    # Otherwise each newline ends its row.
    stay = torch.cat([layout.slots[kept], layout.newline_slots]).sort().values
    torch.testing.assert_close(in_place[1:-1], features[stay])
    torch.testing.assert_close(chained[1:-1], features[stay])
    assert not torch.equal(moved, in_place)


def test_holitom_with_its_stage_inside_the_language_model() -> None:
    model, inputs = tiny.model("llava_onevision"), tiny.inputs("llava_onevision", [[(3, 28, 28)]])
    with eadp.attach(model, method=[eadp.HoliTom(keep=0.5), eadp.FastV(keep=0.5, layers=(21,), fold=True)]) as pruned:
        cached = model.generate(**inputs, max_new_tokens=3, do_sample=False)
        (kept,) = pruned.last
        assert torch.equal(model.generate(**inputs, max_new_tokens=3, do_sample=False, use_cache=False), cached)
    first, _, last = kept.per_layer
    assert last == round(first / 2)


def test_fastvid_says_that_there_is_no_pooling_head() -> None:
    model = tiny.model("llava_onevision")
    notes = []
    for sizes in ([[(3, 28, 28)]], [[(30, 50)]]):
        with eadp.attach(model, method="fastvid", keep=0.3) as pruned:
            model(**tiny.inputs("llava_onevision", sizes))
        notes.append([note for note in pruned.last[0].notes if "pooling head" in note])
    assert len(notes[0]) == 1
    assert notes[1] == []  # an image has no frames to compare


def test_images_of_one_size_that_share_a_budget_are_frames() -> None:
    inputs = tiny.inputs("llava", [[(28, 28)] * 3])
    with eadp.attach(tiny.model("llava"), method="evs", keep=0.5, budget_over="prompt") as pruned:
        tiny.model("llava")(**inputs)
    kept = [len(each) for each in pruned.last]
    assert kept[0] == pruned.last[0].total > kept[1] + kept[2] > 0
    with eadp.attach(tiny.model("llava"), method="evs", keep=0.5) as pruned:
        tiny.model("llava")(**inputs)
    assert [len(each) for each in pruned.last] == [each.total for each in pruned.last]


def test_the_stage_inside_the_language_model_is_a_chain() -> None:
    # The layers that the cards name: 20 and 18 of 28, 28 of 36.
    assert scale_layers((23, 21), 28) == (20, 18)
    assert scale_layers((25,), 36) == (28,)
    inputs, model = tiny.inputs("llava_onevision", [[(3, 28, 28)]]), tiny.model("llava_onevision")
    with eadp.attach(model, method=[eadp.FlashVID(keep=0.4), eadp.FastV(keep=0.3, layers=(23,))]) as pruned:
        model(**inputs)
    (selection,) = pruned.last
    assert selection.method == "flashvid+fastv"
    assert selection.per_layer == (24, 24, 7)  # ⌈16·0.4·1.25⌉ per frame, and 0.3 of them
