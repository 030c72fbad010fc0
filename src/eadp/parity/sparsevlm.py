"""Replay of SparseVLM. A vector holds either one cut, with its attention given, or the schedule of all cuts."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor

from eadp.methods.inside import tokens_per_layer
from eadp.methods.sparsevlm import PUBLISHED, PUBLISHED_TOTAL, SparseVLM, rater_fit, select_raters
from eadp.parity.sequence import GivenLayerView
from eadp.parity.vectors import GoldenVector


def replay(vector: GoldenVector) -> dict[str, Any]:
    """Run SparseVLM on the vector's inputs and return its outputs by name."""
    return _replay_schedule(vector) if vector.settings["kind"] == "schedule" else _replay_cut(vector)


def _replay_schedule(vector: GoldenVector) -> dict[str, Any]:
    settings = vector.settings
    total, depth, table = settings["N"], settings["depth"], tuple(settings["table"])
    is_published = total == PUBLISHED_TOTAL and PUBLISHED.get(settings["retain"]) == table
    method = SparseVLM(keep=settings["retain"]) if is_published else SparseVLM(table=table)
    cuts = method.cuts(total, depth)
    return {
        "tokens_entering_layer": tokens_per_layer(cuts, total, depth),
        "kept_at_cut": [cut.keep - cut.merged for cut in cuts],
        "clusters_at_cut": [cut.merged for cut in cuts],
    }


def _replay_cut(vector: GoldenVector) -> dict[str, Any]:
    states = vector["layer_output"]
    view = GivenLayerView(
        visual=states,
        visual_inputs=vector["visual_inputs"],
        text_inputs=vector["text_inputs"],
        weights=vector["attention"].mean(0),
    )
    method = SparseVLM(table=(vector.settings["keep"],) * 3)
    cut = method.cuts(len(states), 32)[0]
    selection = method.choose(cut, view)
    fit = rater_fit(view.visual_inputs, view.text_inputs)
    scores, merge = cast(Tensor, selection.scores), cast(Tensor, selection.merge)
    recycling = method.cluster_dropped(cut, scores, states)
    rows, kept = merge @ states, cut.keep - cut.merged
    return {
        "rater_fit": fit,
        "raters": select_raters(fit),
        "scores": scores,
        "kept": cast(Tensor, selection.rows)[:kept],
        "candidates": recycling.candidates,
        "centres": recycling.centres,
        "cluster_of": recycling.cluster,
        "clusters": cut.merged,
        "merged": rows[kept:],
        "rows": rows,
        "tokens_after": cut.keep,
    }
