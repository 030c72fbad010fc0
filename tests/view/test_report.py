"""Figures and the data of the report."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from helpers import oracle
from helpers.comparisons import comparison, noise, tokens_on

from eadp import EADP, TextGuide
from eadp.core import token_similarity
from eadp.methods import get_method
from eadp.utils.palette import CIVIDIS, text_colour, to_colours
from eadp.view import Comparison, MethodResult, draw_figure, plot, render_report, to_html
from eadp.view.block_layout import compute_block_layout
from eadp.view.figure import coverages
from eadp.view.panels import draw_heatmap_panel, draw_kept_panel
from eadp.view.report import build_payload

CROPS = {"grids": [(6, 6), (6, 6), (6, 6), (3, 6), (3, 6)], "layout": [
    (0, 0, 2 / 3, 0.5), (0, 0.5, 2 / 3, 1), (2 / 3, 0, 1, 0.5), (2 / 3, 0.5, 1, 1)
]}  # fmt: skip


def test_the_replayed_coverage_ends_at_the_selections_coverage_and_rises_by_its_gains():
    made = comparison([(9, 9)], [noise(90, 90)], 20)
    chosen, replayed = made.results[0].selection, made.replays[0]
    assert replayed.coverage[-1].item() == pytest.approx(chosen.coverage, abs=1e-6)
    span = chosen.gains[1:].sum() / chosen.coverage  # The first pick is the best single token: coverage 0.
    torch.testing.assert_close(replayed.coverage.diff(), chosen.gains[1:] / span, atol=1e-6, rtol=0)


@pytest.mark.parametrize("picks", [1, 7, 20])
def test_changes_name_the_most_similar_of_the_tokens_kept_so_far(picks):
    made = comparison([(8, 8), (5, 5)], [noise(80, 80), noise(80, 80)], 20)
    replayed = made.replays[1]
    alike = {}
    for step, token, value in zip(replayed.steps, replayed.tokens, replayed.similarity, strict=True):
        if step < picks:
            alike[int(token)] = float(value)
    for block in made.blocks:
        similarity = token_similarity(made.features[block])
        kept = [int(each) - block.start for each in replayed.order[:picks] if block.start <= each < block.stop]
        for token in range(block.start, block.stop):
            best = similarity[kept, token - block.start].max().item() if kept else None
            assert alike.get(token) == (None if best is None else pytest.approx(best, abs=1e-6))


def test_coverage_is_computed_in_the_same_way_for_every_method():
    made = comparison([(9, 9)], [noise(90, 90)], 12)
    similarity, weights = token_similarity(made.features).double(), made.relevance.polarized.double()
    for result, covered in zip(made.results, coverages(made), strict=True):
        expected = oracle.coverage(similarity, weights, result.selection.indices.tolist())
        assert covered == pytest.approx(expected, abs=1e-6)


def test_kept_tokens_are_bright_and_dropped_tokens_grey_and_dark():
    image = noise(160, 160)
    made = comparison([(8, 8)], [image], 10)
    result = made.results[0]
    panel = draw_kept_panel(made, result, 160)
    for token, kept in enumerate(result.selection.mask.tolist()):
        x, y = (token % 8) * 20 + 10, (token // 8) * 20 + 10
        red, green, blue = panel.getpixel((x, y))
        if kept:
            assert (red, green, blue) == image.getpixel((x, y))
        else:
            assert red == green == blue < 90


def test_crops_are_drawn_where_they_lie_on_the_image():
    image = noise(120, 90)
    made = comparison(CROPS["grids"], [image], 30, layout=CROPS["layout"])
    whole, *crops = compute_block_layout(made).blocks
    assert [crop.block for crop in crops] == [1, 2, 3, 4]
    for crop, (top, left, bottom, right) in zip(crops, CROPS["layout"], strict=True):
        assert crop.source == (top, left, bottom, right)
        assert crop.left == pytest.approx(whole.left + left * whole.width, abs=0.01)
        assert crop.width == pytest.approx((right - left) * whole.width, abs=0.02)
    assert draw_figure(made).width == 1760


@pytest.mark.parametrize(
    ("grids", "images", "layout"),
    [
        ([(8, 8)], 1, None),
        ([(20, 4)], 1, None),
        (CROPS["grids"], 1, CROPS["layout"]),
        ([(4, 4)] * 5, 1, (2, 2)),
        ([(4, 4)] * 4, 1, None),
        ([(4, 4)] * 7, 7, None),
        ([(4, 6)] * 64, 64, None),
    ],
)
@pytest.mark.parametrize("wide", [False, True])
def test_nothing_overlaps_on_a_sheet(grids, images, layout, wide):
    made = comparison(grids, [noise(60, 40)] * images, len(grids), methods=("uniform",), layout=layout)
    sheet = compute_block_layout(made, wide)
    assert sorted(place.block for place in sheet.blocks) == list(range(len(grids)))
    for number, one in enumerate(sheet.blocks):
        assert one.left >= 0
        assert one.left + one.width <= 1 + 1e-9
        assert one.top + one.height <= sheet.height + 1e-9
        for other in sheet.blocks[:number]:
            apart = one.left >= other.left + other.width or other.left >= one.left + one.width
            below = one.top >= other.top + other.height or other.top >= one.top + one.height
            assert apart or below


def test_a_clip_shows_every_frame_and_its_quota():
    made = comparison([(4, 4)] * 6, [noise(40, 40, seed) for seed in range(6)], 18)
    places = compute_block_layout(made, wide=True).blocks
    assert [place.image for place in places] == list(range(6))
    assert len({round(place.top, 6) for place in places}) == 1
    shown = build_payload(made)
    assert [place["caption"] for place in shown["layout"]["blocks"]] == [f"frame {n}" for n in range(1, 7)]
    assert draw_figure(made).height > draw_figure(comparison([(4, 4)], [noise(40, 40)], 3)).height


def test_tokens_sent_include_newlines():
    made = comparison([(4, 4)], [noise(40, 40)], 3, methods=("eadp",))
    (result,) = made.results
    with_newlines = replace(made, results=[replace(result, selection=replace(result.selection, newlines=2))])
    assert [build_payload(each)["methods"][0]["sent"] for each in (made, with_newlines)] == [3, 5]


def test_a_method_without_a_map_is_drawn_without_one():
    made = comparison([(6, 6)], [noise(60, 60)], 6, methods=("uniform", "eadp"))
    assert made.results[0].heatmap is None
    assert build_payload(made)["methods"][0]["heatmap"] is None
    assert draw_figure(made).size[0] > 0


def test_unused_words_are_struck_through():
    made = comparison([(6, 6)], [noise(60, 60)], 6)
    used = made.relevance.kept
    all_used = replace(made, relevance=replace(made.relevance, kept=torch.ones_like(used)))
    assert not used.all()
    assert draw_figure(made).tobytes() != draw_figure(all_used).tobytes()


def test_colours_run_from_dark_to_light():
    light = (to_colours(torch.linspace(0, 1, 50)).float() @ torch.tensor([0.299, 0.587, 0.114])).tolist()
    assert all(after > before for before, after in pairwise(light))
    assert text_colour(CIVIDIS[0]) == "white"
    assert text_colour(CIVIDIS[-1]) == "black"
    panel = draw_heatmap_panel(comparison([(4, 4)], [noise(40, 40)], 3), torch.arange(16.0), 40)
    assert panel.getpixel((39, 39)) == tuple(CIVIDIS[-1].int().tolist())


# ── The page ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def embedded(page: str) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])


@pytest.mark.parametrize(
    "question", ["</script><script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "{{data}} {{script}}"]
)
def test_html_in_the_question_stays_text(question):
    page = render_report(comparison([(4, 4)], [noise(40, 40)], 4, question=question))
    assert embedded(page)["question"] == question
    assert "alert(1)<" not in page
    assert "onerror=alert(1)>" not in page
    assert len(re.findall(r"<script", page)) == 2


def test_the_page_loads_nothing():
    page = render_report(comparison([(4, 4)], [noise(40, 40)], 4))
    addresses = re.findall(r"https?://[^\s\"'<)]+", page)
    assert set(addresses) == {"http://www.w3.org/2000/svg"}  # an XML namespace, which is not loaded
    assert "default-src 'none'" in page


def test_a_report_of_24_by_24_tokens_is_small():
    question = " ".join(["word"] * 30)
    made = comparison([(24, 24)], [noise(1600, 1600)], 288, question=question)
    assert len(render_report(made).encode()) < 1_500_000


@pytest.mark.slow
def test_a_report_of_64_frames_is_small():
    frames = [noise(384, 384, seed) for seed in range(64)]
    made = comparison([(13, 13)] * 64, frames, 64 * 32, methods=("eadp", "topk", "random"))
    assert len(render_report(made).encode()) < 10_000_000


# ── In a notebook ─────────────────────────────────────────────────────────────────────────────────────────────────────


def selected(grids):
    tokens = tokens_on(grids)
    vectors = torch.randn(3, 12, generator=torch.Generator().manual_seed(2))
    return tokens, EADP(keep=9).select(tokens, TextGuide(vectors, vectors.mean(0), ["a", "red", "cat"]))


def test_plot_of_a_selection():
    tokens, selection = selected([(6, 6)])
    assert plot(selection, noise(60, 60)).tobytes() == plot(selection, noise(60, 60), tokens, "a red cat").tobytes()


def test_html_page_of_a_selection():
    tokens, selection = selected([(4, 9)])
    shown = embedded(to_html(selection, noise(90, 40), tokens))
    assert shown["question"] == "a red cat"
    assert shown["methods"][0]["coverage"] == selection.coverage
    assert shown["methods"][0]["replay"] is not None
    assert embedded(to_html(selection, noise(90, 40), Grids([(4, 9)])))["methods"][0]["replay"] is None


class Grids:
    def __init__(self, grids):
        self.grids, self.layout = grids, None


def test_grids_that_cannot_be_inferred_are_required():
    _, selection = selected([(4, 8)])
    with pytest.raises(ValueError, match="32 tokens do not form a square"):
        plot(selection, noise(80, 40))
    with pytest.raises(ValueError, match="chose among 32"):
        plot(selection, noise(80, 40), Grids([(6, 6)]))


def test_frames_and_blocks_must_match():
    tokens = tokens_on([(4, 4)] * 3)
    result = MethodResult(get_method("uniform", keep=6).select(tokens))
    with pytest.raises(ValueError, match="2 frames were given, but the tokens lie on 3 blocks"):
        draw_figure(Comparison([noise(40, 40)] * 2, "", tokens.grids, [result]))
