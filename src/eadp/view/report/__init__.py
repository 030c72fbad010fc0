"""One self-contained page about an exhibit: works offline, loads nothing, and runs only its own script."""

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
from eadp.view.comparison import Comparison, MethodResult
from eadp.view.replay import Replay
from eadp.view.sheet import lay_out

SCRIPTS = ("data.js", "canvas.js", "curves.js", "main.js")
SHARP, SMALL = 768, 192
"""The longest side in pixels of a picture, and of each of many frames."""

MEASURE = (
    "Coverage: how much of the picture, weighted by EADP's map, the kept tokens represent (facility location); one "
    "measure for every method. At most possible: a proof that no choice of as many tokens covers more. Prefill: vision "
    "tower, text guide, selection and language model together, the median of a few runs in turn."
)


def render_report(comparison: Comparison) -> str:
    """The whole page."""
    script = "\n".join(_file(name) for name in SCRIPTS)
    script = f'"use strict";\n(() => {{\n{script}\n}})();'
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = _file("page.html")
    # The data comes last, so that nothing in it can look like a slot.
    for slot, text in {
        "hash": f"sha256-{digest}",
        "style": _file("style.css"),
        "script": script,
        "data": _json(payload(comparison)),
    }.items():
        page = page.replace(f"{{{{{slot}}}}}", text, 1)
    return page


def framed(page: str, height: str = "85vh") -> str:
    """The page inside another one (a notebook, the live page): it can reach nothing there."""
    style = f"width:100%;height:{height};border:0"
    return f'<iframe title="eadp report" sandbox="allow-scripts" style="{style}" srcdoc="{inert(page)}"></iframe>'


def inert(text: str) -> str:
    """Text for a page that others make: neither HTML nor a slot of some template language."""
    return html.escape(text).replace("{", "&#123;").replace("$", "&#36;")


def payload(comparison: Comparison) -> dict[str, Any]:
    """What the page's script gets. Arrays are base64 of little-endian numbers."""
    side = SHARP if len(comparison.images) == 1 else SMALL
    return {
        "question": comparison.question,
        "total": comparison.total,
        "grids": [list(grid) for grid in comparison.grids],
        "sheet": asdict(lay_out(comparison)),
        "images": [_picture(image, side) for image in comparison.images],
        "words": [] if comparison.relevance is None else _words(comparison.relevance),
        "takes": [
            _take(result, replayed) for result, replayed in zip(comparison.results, comparison.replays, strict=True)
        ],
        "whole": None
        if comparison.whole is None
        else {"answer": comparison.whole.text, "prefill": comparison.whole.prefill},
        "notes": list(comparison.notes),
        "measure": MEASURE,
        "colours": CIVIDIS.tolist(),
        "lines": list(OKABE_ITO[:6]),
    }


def _take(result: MethodResult, replayed: Replay | None) -> dict[str, Any]:
    chosen, order = result.selection, result.order
    return {
        "name": result.name,
        "order": _numbers(chosen.indices if order is None else order, "u4"),
        "ordered": order is not None,
        "coverage": chosen.coverage,
        "bound": chosen.bound,
        "heat": None if result.heat is None else _numbers(result.heat, "f4"),
        "answer": None if result.answer is None else result.answer.text,
        "prefill": None if result.answer is None else result.answer.prefill,
        "replay": None if replayed is None else _replay(replayed),
    }


def _replay(replayed: Replay) -> dict[str, Any]:
    return {
        "steps": _numbers(replayed.steps, "u4"),
        "tokens": _numbers(replayed.tokens, "u4"),
        "similarity": _numbers(replayed.similarity, "f4"),
        "coverage": replayed.coverage.tolist(),
    }


def _words(relevance: Relevance) -> list[dict[str, Any]]:
    """Each word's map starts at its own lowest value, and one scale serves all: a word that points nowhere is flat."""
    if relevance.words is None or not relevance.words:
        return []
    maps = relevance.similarity.cpu().float()
    maps = maps - maps.amin(dim=1, keepdim=True)
    maps = (255 * maps / maps.max().clamp_min(1e-9)).round()
    entropy, kept, weights = (
        values.tolist() for values in (relevance.word_entropy, relevance.word_kept, relevance.word_weight)
    )
    levels = (1 - normalize(relevance.word_entropy)).tolist()
    told = zip(relevance.words, entropy, kept, levels, weights, maps, strict=True)
    return [
        {"text": word, "entropy": entropy, "kept": kept, "level": shade, "weight": weight, "map": _numbers(each, "u1")}
        for word, entropy, kept, shade, weight, each in told
    ]


def _numbers(values: Tensor, kind: str) -> str:
    return base64.b64encode(values.detach().cpu().numpy().astype(np.dtype(f"<{kind}")).tobytes()).decode()


def _picture(image: Image.Image, side: int) -> str:
    small = image.copy()
    small.thumbnail((side, side), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    small.save(file, "JPEG", quality=88)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"


def _json(value: Any) -> str:
    """JSON that can stand inside a script element: nothing in it opens or closes a tag."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _file(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
