"""One self-contained HTML page: it works offline, loads nothing, and runs only its own script."""

from __future__ import annotations

import base64
import hashlib
import html
import io
import json
from dataclasses import asdict
from importlib.resources import files
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from eadp.core import Relevance
from eadp.utils.palette import CIVIDIS, OKABE_ITO, normalize
from eadp.view.block_layout import compute_block_layout
from eadp.view.comparison import Comparison, MethodResult
from eadp.view.replay import Replay

SCRIPTS = ("data.js", "canvas.js", "curves.js", "main.js")
IMAGE_SIDE, FRAME_SIDE = 768, 192
"""Longest side in pixels of a single image, and of each frame of a clip."""

TABLE_NOTE = (
    "Sent: the kept tokens, and the newline tokens that the language model receives with them. Coverage: how much of "
    "the image, weighted by EADP's map, the kept tokens represent (facility location), computed in the same way for "
    "every method. Upper bound: no selection of as many tokens covers more. Prefill: vision tower, text guide, "
    "selection and language model together; the median of a few runs."
)


def render_report(comparison: Comparison) -> str:
    """Render a comparison as one HTML page."""
    script = "\n".join(_read_asset(name) for name in SCRIPTS)
    script = f'"use strict";\n(() => {{\n{script}\n}})();'
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = _read_asset("page.html")
    # The data comes last: text in it that looks like a slot must not be filled.
    for slot, text in {
        "hash": f"sha256-{digest}",
        "style": _read_asset("style.css"),
        "script": script,
        "data": _to_json(build_payload(comparison)),
    }.items():
        page = page.replace(f"{{{{{slot}}}}}", text, 1)
    return page


def embed_in_iframe(page: str, height: str = "85vh") -> str:
    """Embed a page in another one, such as a notebook or the live page.

    The page runs in a sandbox and cannot reach anything outside its frame.

    Args:
        page: The page as HTML.
        height: Height of the frame, in CSS units.
    """
    style = f"width:100%;height:{height};border:0"
    return f'<iframe title="eadp report" sandbox="allow-scripts" style="{style}" srcdoc="{escape_text(page)}"></iframe>'


def escape_text(text: str) -> str:
    """Escape text for a page that others render, so that it is neither HTML nor a slot of a template language."""
    return html.escape(text).replace("{", "&#123;").replace("$", "&#36;")


def build_payload(comparison: Comparison) -> dict[str, Any]:
    """Build the data for the script of the page. Arrays are little-endian numbers in base64."""
    side = FRAME_SIDE if comparison.is_clip else IMAGE_SIDE
    return {
        "question": comparison.question,
        "total": comparison.total,
        "grids": [list(grid) for grid in comparison.grids],
        "layout": asdict(compute_block_layout(comparison)),
        "images": [_encode_image(image, side) for image in comparison.images],
        "words": [] if comparison.relevance is None else _word_data(comparison.relevance),
        "methods": [
            _method_data(result, replay) for result, replay in zip(comparison.results, comparison.replays, strict=True)
        ],
        "unpruned": None
        if comparison.unpruned is None
        else {"answer": comparison.unpruned.text, "prefill": comparison.unpruned.prefill},
        "notes": list(comparison.notes),
        "table_note": TABLE_NOTE,
        "scale_colours": CIVIDIS.tolist(),
        "line_colours": list(OKABE_ITO[:6]),
    }


def _method_data(result: MethodResult, replay: Replay | None) -> dict[str, Any]:
    selection, order = result.selection, result.order
    return {
        "name": result.name,
        "order": _encode_array(selection.indices if order is None else order, "u4"),
        "ordered": order is not None,
        "sent": selection.tokens_sent,
        "coverage": selection.coverage,
        "bound": selection.bound,
        "heatmap": None if result.heatmap is None else _encode_array(result.heatmap, "f4"),
        "answer": None if result.answer is None else result.answer.text,
        "prefill": None if result.answer is None else result.answer.prefill,
        "replay": None if replay is None else _replay_data(replay),
    }


def _replay_data(replay: Replay) -> dict[str, Any]:
    return {
        "steps": _encode_array(replay.steps, "u4"),
        "tokens": _encode_array(replay.tokens, "u4"),
        "similarity": _encode_array(replay.similarity, "f4"),
        "coverage": replay.coverage.tolist(),
    }


def _word_data(relevance: Relevance) -> list[dict[str, Any]]:
    """Encode the words. Each map starts at its own minimum; all share one scale, so unspecific words look flat."""
    if relevance.words is None or not relevance.words:
        return []
    maps = relevance.similarity.cpu().float()
    maps = maps - maps.amin(dim=1, keepdim=True)
    maps = (255 * maps / maps.max().clamp_min(1e-9)).round()
    entropy, kept, weights = (
        values.tolist() for values in (relevance.word_entropy, relevance.word_kept, relevance.word_weight)
    )
    levels = (1 - normalize(relevance.word_entropy)).tolist()
    columns = zip(relevance.words, entropy, kept, levels, weights, maps, strict=True)
    return [
        {
            "text": word,
            "entropy": entropy,
            "kept": kept,
            "level": level,
            "weight": weight,
            "map": _encode_array(word_map, "u1"),
        }
        for word, entropy, kept, level, weight, word_map in columns
    ]


def _encode_array(values: Tensor, dtype: str) -> str:
    return base64.b64encode(values.detach().cpu().numpy().astype(np.dtype(f"<{dtype}")).tobytes()).decode()


def _encode_image(image: Image.Image, side: int) -> str:
    small = image.copy()
    small.thumbnail((side, side), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    small.save(file, "JPEG", quality=88)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"


def _to_json(value: Any) -> str:
    """Serialize to JSON that is safe inside a script element: nothing in it opens or closes a tag."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _read_asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
