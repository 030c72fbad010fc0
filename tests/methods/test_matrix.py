"""Every method that prunes before the language model, on every family: what must hold whatever is chosen."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from helpers import tiny
from helpers.manual_pruning import answers
from helpers.methods import BEFORE
from helpers.prompts import CLIPS, IMAGES, Sizes, every_prompt
from helpers.simple_methods import guide_of
from torch import Tensor

import eadp
from eadp.core import Selection
from eadp.methods import get_method, get_method_class
from eadp.models import FAMILIES, ImageLayout

KEEP = 0.4


def exact(name: str) -> dict[str, bool]:
    """Where a release keeps more or fewer tokens than asked for, it may be told not to."""
    return {"exact": True} if "exact" in get_method_class(name).default_settings() else {}


def pruning(family: str, name: str, keep: float) -> eadp.Pruned:
    guide = guide_of(family, get_method_class(name))
    return eadp.attach(tiny.model(family), method=name, keep=keep, guide=guide, question="Which one?", **exact(name))


def promised(family: str, name: str, layout: ImageLayout, selection: Selection) -> int:
    """How many tokens a method keeps: the budget to the token. An image has a resolution of whole rows and columns, so
    that `downsample` keeps the most tokens that fit into the budget that way."""
    method, newlines = get_method(name, keep=KEEP, **exact(name)), len(layout.newline_slots)
    if len(selection) == selection.total and selection.merge is None:
        return len(layout) + selection.newlines
    if name != "downsample":
        sent = method.count_sent(len(layout), newlines, layout.layout is not None)
        newlines_sent = {"all": newlines, "kept rows": selection.newlines}
        return sent + newlines_sent.get(method.newlines, 0)
    square_only = FAMILIES[family].load().geometry_class.square_grids_only
    return sum(rows * columns for rows, columns in method.choose_resolutions(layout.grids, square_only))


@cache
def unpruned(family: str, video: bool) -> Tensor:
    sizes = (CLIPS if video else IMAGES)[family]
    return tiny.model(family)(**tiny.inputs(family, sizes)).logits


@every_prompt
@pytest.mark.parametrize("name", BEFORE)
def test_every_method_on_every_family(family: str, sizes: Sizes, name: str) -> None:
    model, inputs = tiny.model(family), tiny.inputs(family, sizes)
    with pruning(family, name, KEEP) as pruned:
        tokens, logits = answers(model, **inputs, max_new_tokens=3)
        together, layouts = pruned.last, pruned.images
        for selection, layout in zip(together, layouts, strict=True):
            assert selection.tokens_sent == promised(family, name, layout, selection)
            assert selection.method.split(" (")[0] == name
            assert bool((selection.indices.diff() > 0).all())
            assert 0 <= int(selection.indices[0]) <= int(selection.indices[-1]) < selection.total == len(layout)
            assert sum(selection.quotas) == len(selection) or len(selection) == selection.total

        again, uncached = answers(model, **inputs, max_new_tokens=3, use_cache=False)
        assert torch.equal(again, tokens)
        torch.testing.assert_close(uncached, logits, rtol=1e-4, atol=1e-4)
        assert [each.indices.tolist() for each in pruned.last] == [each.indices.tolist() for each in together]

        single = []
        for row in range(2):
            alone = tiny.inputs(family, sizes[row : row + 1], first=row)
            torch.testing.assert_close(model(**alone).logits[:, -1], logits[row, :1], rtol=1e-4, atol=1e-4)
            single += pruned.last
        assert [each.indices.tolist() for each in single] == [each.indices.tolist() for each in together]

    with pruning(family, name, 1.0) as pruned:
        assert torch.equal(model(**inputs).logits, unpruned(family, sizes is CLIPS.get(family)))
        assert all(len(each) == each.total for each in pruned.last)
