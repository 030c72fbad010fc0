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
from eadp.view.colours import LINES, STOPS, level
from eadp.view.exhibit import Exhibit, Take
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


def to_html(exhibit: Exhibit) -> str:
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
        "data": _json(payload(exhibit)),
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


def payload(exhibit: Exhibit) -> dict[str, Any]:
    """What the page's script gets. Arrays are base64 of little-endian numbers."""
    side = SHARP if len(exhibit.images) == 1 else SMALL
    return {
        "question": exhibit.question,
        "total": exhibit.total,
        "grids": [list(grid) for grid in exhibit.grids],
        "sheet": asdict(lay_out(exhibit)),
        "images": [_picture(image, side) for image in exhibit.images],
        "words": [] if exhibit.relevance is None else _words(exhibit.relevance),
        "takes": [_take(take, replayed) for take, replayed in zip(exhibit.takes, exhibit.replays, strict=True)],
        "whole": None if exhibit.whole is None else {"answer": exhibit.whole.text, "prefill": exhibit.whole.prefill},
        "notes": list(exhibit.notes),
        "measure": MEASURE,
        "colours": STOPS.tolist(),
        "lines": list(LINES),
    }


def _take(take: Take, replayed: Replay | None) -> dict[str, Any]:
    chosen, order = take.selection, take.order
    return {
        "name": take.name,
        "order": _numbers(chosen.indices if order is None else order, "u4"),
        "ordered": order is not None,
        "coverage": chosen.coverage,
        "bound": chosen.bound,
        "heat": None if take.heat is None else _numbers(take.heat, "f4"),
        "answer": None if take.answer is None else take.answer.text,
        "prefill": None if take.answer is None else take.answer.prefill,
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
    levels = (1 - level(relevance.word_entropy)).tolist()
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
