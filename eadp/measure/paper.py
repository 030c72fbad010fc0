"""The paper's three efficiency tables, and what a recount gives.

Its "FLOPs" are the multiply-adds of the linear layers, the head included, for every token of the prompt: parameters
without the embedding table, times tokens. Attention's own products, which grow with the square of the tokens, are left
out.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from eadp.measure.architectures import ARCHITECTURES
from eadp.measure.flops import build, linear_weights


@dataclass(frozen=True)
class Row:
    """What the paper prints, in milliseconds and giga multiply-adds; tokens: how many the figures say there were."""

    heading: str
    tokens: int
    method: str
    prefill: float
    latency: float
    giga: float


def _rows(heading: str, tokens: int, **methods: tuple[float, float, float]) -> list[Row]:
    return [Row(heading, tokens, method.replace("_", " "), *figures) for method, figures in methods.items()]


TABLES: dict[str, list[Row]] = {
    "llava-1.5-7b": [
        *_rows("576", 576, all_tokens=(207.4, 256.8, 4489.8)),
        *_rows(
            "128",
            128,
            DivPrune=(109.6, 158.0, 1529.9),
            CDPruner=(135.9, 183.3, 1538.3),
            HiPrune=(99.4, 150.1, 1529.9),
            EADP=(118.8, 169.3, 1538.4),
        ),
        *_rows(
            "64",
            64,
            DivPrune=(92.7, 140.4, 1107.0),
            CDPruner=(105.9, 157.3, 1115.5),
            HiPrune=(85.7, 137.6, 1107.0),
            EADP=(97.0, 147.7, 1115.6),
        ),
        *_rows(
            "32",
            32,
            DivPrune=(79.8, 128.3, 895.6),
            CDPruner=(85.8, 137.46, 904.1),
            HiPrune=(74.8, 126.54, 895.6),
            EADP=(81.9, 129.63, 904.1),
        ),
    ],
    "llava-next-7b": [
        # The full row does not fit its own count: 12,655.2 G are 1,692 tokens more than the 640-token row's.
        *_rows("576", 0, all_tokens=(743.7, 819.7, 12655.2)),
        *_rows(
            "128",
            640,
            DivPrune=(279.1, 347.0, 5693.6),
            CDPruner=(277.8, 340.4, 5709.4),
            HiPrune=(234.8, 299.9, 5693.6),
            EADP=(256.6, 323.7, 5709.6),
        ),
        *_rows(
            "64",
            320,
            DivPrune=(198.2, 262.3, 3579.4),
            CDPruner=(196.6, 255.2, 3595.1),
            HiPrune=(176.5, 245.2, 3579.4),
            EADP=(188.2, 257.2, 3595.3),
        ),
        *_rows(
            "32",
            160,
            DivPrune=(134.1, 194.0, 2522.2),
            CDPruner=(134.1, 191.5, 2538.0),
            HiPrune=(122.7, 175.9, 2522.2),
            EADP=(129.5, 194.2, 2538.2),
        ),
    ],
    "qwen2.5-vl-3b": [
        *_rows("1008", 1296, all_tokens=(351.6, 691.6, 4273.3)),
        *_rows(
            "512",
            512,
            DivPrune=(88.4, 684.9, 1854.1),
            CDPruner=(81.4, 873.3, 1854.1),
            HiPrune=(86.1, 1883.5, 1854.1),
            EADP=(79.4, 704.2, 1854.1),
        ),
        *_rows(
            "256",
            256,
            DivPrune=(64.4, 618.3, 1064.2),
            CDPruner=(65.4, 747.6, 1064.2),
            HiPrune=(67.3, 2019.7, 1064.2),
            EADP=(62.9, 622.3, 1064.2),
        ),
        *_rows(
            "128",
            128,
            DivPrune=(59.0, 690.2, 669.2),
            CDPruner=(61.5, 1032.7, 669.2),
            HiPrune=(68.4, 2591.7, 669.2),
            EADP=(59.7, 587.5, 669.2),
        ),
    ],
}

REMARKS = {
    "llava-1.5-7b": "",
    "llava-next-7b": "The headings give the budget of one of five crops: an image keeps 640, 320 and 160 tokens.",
    "qwen2.5-vl-3b": "“All 1008 Tokens” is the side of the image: 1008² pixels are 36×36 = 1,296 tokens.",
}


@dataclass(frozen=True)
class Step:
    """From one budget to the next: giga multiply-adds saved, as the paper's rows say and as counted here."""

    start: int
    end: int
    paper: float
    ours: float

    @property
    def off(self) -> float:
        return self.ours / self.paper - 1


def per_token(name: str) -> int:
    """Multiply-adds of one token in the linear layers and the head."""
    model = build(ARCHITECTURES[name]())
    return linear_weights(model.model.language_model) + model.lm_head.weight.numel()


def steps(name: str) -> list[Step]:
    """The paper's rows differ by tokens alone: the text, the tower and the guide drop out of each difference."""
    token = per_token(name) / 1e9
    rows = [row for row in TABLES[name] if row.method in ("all tokens", "DivPrune") and row.tokens]
    return [Step(a.tokens, b.tokens, a.giga - b.giga, (a.tokens - b.tokens) * token) for a, b in pairwise(rows)]
