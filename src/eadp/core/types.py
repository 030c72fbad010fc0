"""What goes into a method and what comes out: `VisualTokens`, `TextGuide`, `Relevance`, `Selection`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Literal, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    from PIL.Image import Image

    Pictures = Image | Sequence[Image]

Grid = tuple[int, int]
"""Rows and columns of one block of tokens (an image, a crop, a frame)."""

Box = tuple[float, float, float, float]
"""Top, left, bottom, right, as shares of the whole image in [0, 1]."""

Layout = tuple[int, int] | Sequence[Box]
"""Where the local crops lie on the whole image: a regular (rows, columns), or one box a crop."""


TextLayout = Literal["words", "slots", "truncated"]
"""How a text encoder of fixed length L (CLIP, SigLIP) is to be given the question.

words:     its own tokens; one longer than L is cut at word ends into segments, each with its own BOS and EOS.
slots:     tokenised whole, filled up with id 0 to a multiple of L and cut every L; every slot counts as a word, BOS,
           EOS and filling too. So do the releases of EADP and CDPruner.
truncated: its first L slots, the rest is dropped. So does the release of TRIM.
"""

MergeSpace = Literal["features", "tower"]
"""Where tokens are merged: behind the model's projector, or before it, so that it projects the merged rows."""


class OnGrids(Protocol):
    """What knows where a picture's tokens lie."""

    @property
    def grids(self) -> Sequence[Grid]: ...

    @property
    def layout(self) -> Layout | None: ...


@dataclass(frozen=True)
class TowerAttention:
    """What one layer of the vision tower attended to, in the order of the tokens. Merged patches count by their mean.

    layer:    counted from 0, of the tower's `depth`.
    keys:     N×heads×c.
    cls:      N, the row of the CLS token, mean over heads; None for towers without one.
    cls_full_width: N, the same row from one softmax of q·k/√(heads·c) over the full width, as if there were one head.
    received: N, the attention that each token gets from all the queries of its image: mean over heads, sum over
              queries, over N, so that the mean is 1/N (less what a CLS token gets). None where the method goes by CLS
              and the tower has one.
    family:   the `model_type` of the model that the tower belongs to, for releases that treat models differently.
    """

    layer: int
    depth: int
    keys: Tensor
    cls: Tensor | None = None
    received: Tensor | None = None
    cls_full_width: Tensor | None = None
    family: str = ""

    def __post_init__(self) -> None:
        if self.cls is None and self.received is None:
            raise ValueError("the attention of a tower without CLS must say what its tokens received")


@dataclass(frozen=True)
class VisualTokens:
    """The N visual tokens of one image (or clip), block after block, each block row by row.

    features: N×d_v, as the language model would receive them.
    aligned:  N×c, the same tokens in a space shared with text; None where a method needs no text.
    grids:    (rows, columns) of each block; their areas add up to N.
    layout:   where the local crops (blocks 1, 2, …) lie on block 0, for `global_guided` allocation.
    attention: what the vision tower's layers attended to, those that the method asked for and in its order.
    tower:    N×w, the same tokens as the vision tower gives them, before the model's projector (on Qwen a token's
              patches side by side); only for methods that merge there, and only where the projector takes any such
              row by itself.
    tower_cls: blocks×w, the CLS token of each block, likewise; None where the tower has none.
    sequence: N, the rank of each token in the order in which the language model gets them (the joined crops of
              LLaVA-NeXT are read row by row); None: as they lie here.
    newlines: R×d_v, the newline tokens between the image's rows, for methods that choose among those too.
    extra:    E×d_v, the blocks seen at a lower resolution, as the language model would receive them, with these grids
              in `extra_grids`.
    """

    features: Tensor
    aligned: Tensor | None
    grids: Sequence[Grid]
    layout: Layout | None = None
    attention: Sequence[TowerAttention] = ()
    tower: Tensor | None = None
    tower_cls: Tensor | None = None
    sequence: Tensor | None = None
    newlines: Tensor | None = None
    extra: Tensor | None = None
    extra_grids: Sequence[Grid] = ()

    def __post_init__(self) -> None:
        if self.features.ndim != 2 or 0 in self.features.shape:
            raise ValueError(f"features must be N×d with N, d ≥ 1, got shape {tuple(self.features.shape)}")
        n = len(self.features)
        if self.aligned is not None and (self.aligned.ndim != 2 or len(self.aligned) != n):
            raise ValueError(f"aligned must have one row for each of the {n} tokens, got {tuple(self.aligned.shape)}")
        grids = tuple((int(rows), int(columns)) for rows, columns in self.grids)
        if not grids or any(rows < 1 or columns < 1 for rows, columns in grids):
            raise ValueError(f"grids must be (rows, columns) pairs of at least 1×1, got {self.grids!r}")
        if (cells := sum(rows * columns for rows, columns in grids)) != n:
            raise ValueError(f"grids {list(grids)} hold {cells} tokens, but features has {n} rows")
        object.__setattr__(self, "grids", grids)

    def __len__(self) -> int:
        return len(self.features)

    @property
    def blocks(self) -> list[slice]:
        """The rows of each block."""
        ends = list(accumulate(rows * columns for rows, columns in self.grids))
        return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]

    def in_sequence(self, indices: Tensor) -> Tensor:
        """These tokens in the order in which the language model gets them."""
        return indices.sort().values if self.sequence is None else indices[self.sequence[indices].argsort()]

    def quotas(self, indices: Tensor) -> tuple[int, ...]:
        """How many of these tokens each block has."""
        return tuple(int(((indices >= block.start) & (indices < block.stop)).sum()) for block in self.blocks)


@dataclass(frozen=True)
class TextGuide:
    """The question in the space of `VisualTokens.aligned`.

    tokens:  M×c, one row for each of the instruction's own tokens; a list of them where the prompt was cut into
             segments (CLIP takes 77 tokens at a time). Where a method asks for slots instead of words (see
             `TextLayout`), a row for each slot of the encoder's sequence: BOS, EOS and filling too.
    pooled:  c, one vector for the whole prompt; a list, one per segment.
    words:   how each of the M tokens reads, over all segments.
    sign:    −1 where the encoder's raw maps light up the background (CLIP), +1 where they light up the object. It
             belongs to the encoder, not to the method.
    """

    tokens: Tensor | Sequence[Tensor] | None
    pooled: Tensor | Sequence[Tensor] | None
    words: Sequence[str] | None = None
    sign: float = -1.0


@dataclass(frozen=True)
class Relevance:
    """Stage 1 and the start of stage 2, every intermediate. M text tokens, N visual tokens in B blocks.

    similarity:   M×N, c_ij = sign · cos(t_i, v_j).
    entropy:      M×B, h_i of softmax_j(c_ij / τ) over the tokens of each block.
    dispersion:   M×B, what the filter ranks by: the entropy, or the chosen stand-in; larger is more dispersed.
    kept:         M×B, true for the words that stay.
    weights:      M×N, what each word weighs in each token's score; 0 for words that do not stay.
    dense_score, global_score, fused: N; None for a part that was not there to compute.
    score:        N, `fused` after min-max, in [0, 1].
    smoothed, polarized: N, after the Gaussian and after the power β; None before stage 2.
    notes:        what was done otherwise than asked, in words.
    """

    similarity: Tensor
    entropy: Tensor
    dispersion: Tensor
    kept: Tensor
    weights: Tensor
    dense_score: Tensor | None
    global_score: Tensor | None
    fused: Tensor
    score: Tensor
    smoothed: Tensor | None = None
    polarized: Tensor | None = None
    words: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()

    @property
    def word_entropy(self) -> Tensor:
        """M, the entropy of each word in the block where it points most."""
        return self.entropy.amin(1)

    @property
    def word_weight(self) -> Tensor:
        """M, what each word weighs, in the mean over the tokens."""
        return self.weights.mean(1)

    @property
    def word_kept(self) -> Tensor:
        """M, true for words that stay in some block."""
        return self.kept.any(1)


@dataclass(frozen=True)
class Selection:
    """Which of the N tokens stay.

    indices:  K, sorted: the kept tokens in their original order.
    total:    N.
    method:   the method's name, with its variant where the model forced one.
    order:    K, the same tokens as they were picked; gains: K, the marginal gain of each, in the same order.
    coverage: share of the weighted image that the kept tokens represent, in [0, 1].
    bound:    no choice of as many tokens can have more coverage than this, for this very image and question.
    quotas:   how many tokens each block kept.
    scores:   N, what the method ranked the tokens by.
    merge:    K×N where kept tokens absorb others: row k is Σ_j merge[k, j] · row j. None: rows as they were. K×(N + E)
              where the E extra tokens, or E CLS tokens, are among them. `indices` are then the K places that the new
              rows fill.
    merge_space: what `merge` weighs: `features`, or rows of the `tower`, which the model's projector takes afterwards.
    rows:     K, which token each row of `merge` stands for, in the order in which the language model gets them; −1 for
              one that stands for none (a mean, CLS). None: row k stands for token indices[k], at its own place.
    newlines: how many newline tokens of this image the language model gets beside those.
    per_layer: how many tokens each layer of the language model processes, where not all process the same.
    relevance, notes: how the method got there.
    """

    indices: Tensor
    total: int
    method: str
    order: Tensor | None = None
    gains: Tensor | None = None
    coverage: float | None = None
    bound: float | None = None
    quotas: tuple[int, ...] = ()
    scores: Tensor | None = None
    merge: Tensor | None = None
    merge_space: MergeSpace = "features"
    rows: Tensor | None = None
    newlines: int = 0
    per_layer: tuple[int, ...] = ()
    relevance: Relevance | None = None
    notes: tuple[str, ...] = field(default=())

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def sent(self) -> int:
        """How many tokens of this image the language model gets: those that stay, and newlines."""
        return len(self) + self.newlines

    @property
    def mask(self) -> Tensor:
        """N, true for the kept tokens."""
        mask = self.indices.new_zeros(self.total, dtype=torch.bool)
        mask[self.indices] = True
        return mask

    @property
    def layers(self) -> tuple[tuple[int, int], ...]:
        """(layer, tokens from it on) for each layer of the language model, counted from 0, before which some went."""
        pairs = zip(self.per_layer, self.per_layer[1:], strict=False)
        return tuple((layer, now) for layer, (former, now) in enumerate(pairs, start=1) if now != former)

    @property
    def tokens_after(self) -> int:
        """Tokens left after the last cut."""
        return len(self)

    @property
    def tokens_layer_mean(self) -> float:
        """Mean over the layers of the language model of the tokens that each processes."""
        return sum(self.per_layer) / len(self.per_layer) if self.per_layer else float(len(self))

    @property
    def words(self) -> tuple[str, ...] | None:
        """How the question's tokens read, where the guide said it."""
        return self.relevance.words if self.relevance else None

    def plot(self, picture: Pictures, where: OnGrids | None = None, question: str = "") -> Image:
        """A figure as a Pillow image: the words, the map, the kept tokens lit. Notebooks show it.

        picture: the image, or the frames of a clip.
        where:   what knows the tokens' grids: of `pruned.images`, or the `VisualTokens`. None: one square.
        """
        from eadp.view.figure import draw
        from eadp.view.notebook import exhibit_of

        return draw(exhibit_of(self, picture, where, question))

    def to_html(self, picture: Pictures, where: OnGrids | None = None, question: str = "") -> str:
        """The report as one self-contained page; with `VisualTokens` it also says which token represents which."""
        from eadp.view.notebook import exhibit_of
        from eadp.view.report import to_html

        return to_html(exhibit_of(self, picture, where, question))
