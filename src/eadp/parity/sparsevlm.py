"""SparseVLM on its vectors: one cut whose attention is given, or the schedule of all."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor

from eadp.methods.inside import tokens_per_layer
from eadp.methods.sparsevlm import PUBLISHED, PUBLISHED_TOTAL, SparseVLM, rater_fit, select_raters
from eadp.parity.sequence import Shown
from eadp.parity.vectors import Vector


def replay(vector: Vector) -> dict[str, Any]:
    return schedule(vector) if vector.settings["kind"] == "schedule" else cut(vector)


def schedule(vector: Vector) -> dict[str, Any]:
    settings = vector.settings
    total, depth, table = settings["N"], settings["depth"], tuple(settings["table"])
    named = total == PUBLISHED_TOTAL and PUBLISHED.get(settings["retain"]) == table
    method = SparseVLM(keep=settings["retain"]) if named else SparseVLM(table=table)
    cuts = method.cuts(total, depth)
    return {
        "tokens_entering_layer": tokens_per_layer(cuts, total, depth),
        "kept_at_cut": [cut.keep - cut.merged for cut in cuts],
        "clusters_at_cut": [cut.merged for cut in cuts],
    }


def cut(vector: Vector) -> dict[str, Any]:
    states = vector["layer_output"]
    view = Shown(
        visual=states,
        visual_inputs=vector["visual_inputs"],
        text_inputs=vector["text_inputs"],
        weights=vector["attention"].mean(0),
    )
    method = SparseVLM(table=(vector.settings["keep"],) * 3)
    here = method.cuts(len(states), 32)[0]
    chosen = method.choose(here, view)
    fit = rater_fit(view.visual_inputs, view.text_inputs)
    scores, merge = cast(Tensor, chosen.scores), cast(Tensor, chosen.merge)
    back = method.cluster_dropped(here, scores, states)
    rows, kept = merge @ states, here.keep - here.merged
    return {
        "rater_fit": fit,
        "raters": select_raters(fit),
        "scores": scores,
        "kept": cast(Tensor, chosen.rows)[:kept],
        "candidates": back.candidates,
        "centres": back.centres,
        "cluster_of": back.cluster,
        "clusters": here.merged,
        "merged": rows[kept:],
        "rows": rows,
        "tokens_after": here.keep,
    }
