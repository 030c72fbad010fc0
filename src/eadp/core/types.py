"""Inputs and outputs of a pruning method.

A method takes `VisualTokens` and, if it needs the question, a `TextGuide`. It returns a `Selection`. Methods that score
tokens against the question also report a `Relevance`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal, Protocol

import torch
from torch import Tensor

from eadp.core.deferred import WithDeferredFields, deferrable

Grid = tuple[int, int]
"""Rows and columns of one block of tokens. A block is an image, a crop or a frame."""

Box = tuple[float, float, float, float]
"""(top, left, bottom, right) as fractions of the whole image, each in [0, 1]."""

Layout = tuple[int, int] | Sequence[Box]
"""Position of the local crops on the whole image: a regular grid of (rows, columns) crops, or one box per crop."""


TextLayout = Literal["words", "slots", "truncated"]
"""How the question is fed to a text encoder that takes a fixed number L of tokens (CLIP, SigLIP).

- `words`: The question's own tokens. A longer question is split at word ends into segments, each with its own BOS and
  EOS token. Only the question's own tokens count as words.
- `slots`: The question is tokenized as a whole, padded with id 0 to a multiple of L, and split every L tokens. Every
  position counts as a word, including BOS, EOS and padding. The releases of EADP and CDPruner do this.
- `truncated`: The first L tokens; the rest is dropped. The release of TRIM does this.
"""

MergeSpace = Literal["features", "tower"]
"""Where tokens are merged: `features` after the model's projector, `tower` before it, so that the projector then maps
the merged rows."""


class OnGrids(Protocol):
    """Anything that knows the grids and the crop layout of an image's tokens."""

    @property
    def grids(self) -> Sequence[Grid]: ...

    @property
    def layout(self) -> Layout | None: ...


@dataclass(frozen=True)
class TowerAttention:
    """Attention in one layer of the vision tower, with one entry per visual token.

    Where the model merges several patches into one token, the token's entry is the mean over its patches.

    Attributes:
        layer: Index of the layer, counted from 0.
        depth: Number of layers in the tower.
        keys: N×heads×c, the attention keys.
        cls: N, the attention of the CLS token to each token, averaged over heads. None for towers without CLS.
        received: N, the attention that each token receives: averaged over heads, summed over the queries of its image,
            and divided by N. Its mean is 1/N, minus what a CLS token receives. None where the method uses CLS
            attention and the tower has a CLS token.
        cls_full_width: N, the attention of the CLS token computed as if there were a single head: one softmax of
            q·k/√(heads·c) over the full width.
        family: `model_type` of the model that the tower belongs to, for releases that treat models differently.
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
            raise ValueError("TowerAttention needs cls or received; a tower without a CLS token must give received")


@dataclass(frozen=True)
class VisualTokens:
    """The N visual tokens of one image or clip, block by block, each block row by row.

    Attributes:
        features: N×d_v, as the language model would receive them.
        aligned: N×c, the same tokens in the embedding space of the text. None where the method needs no text.
        grids: (rows, columns) of each block. The areas add up to N.
        layout: Position of the local crops (blocks 1, 2, …) on the whole image (block 0). Needed by the
            `global_guided` allocation.
        attention: Attention in the vision tower's layers that the method asked for, in the order it asked for them.
        tower: N×w, the same tokens as the vision tower outputs them, before the model's projector. On Qwen, the
            patches of a token are concatenated. Given only to methods that merge in this space, and only where the
            projector maps each row independently.
        tower_cls: blocks×w, the CLS token of each block in the same space. None where the tower has no CLS.
        tower_features: N×w, the mean of each token's patches in the vision tower's output that the projector reads, for
            methods that compare tokens there.
        padding: N, true for tokens that show nothing but padding. None where the model pads no image, or where the
            method does not ask.
        sequence: N, on the CPU, the rank of each token in the order in which the language model receives them. It
            differs from the order here on LLaVA-NeXT, whose crops are joined and read row by row. None if the order is
            the same.
        newlines: R×d_v, the newline tokens between the image's rows, for methods that can keep or drop these too.
        downsampled: E×d_v, the blocks encoded again at a lower resolution, as the language model would receive them.
        downsampled_grids: (rows, columns) of each block in `downsampled`; (0, 0) for a block that is dropped.
        is_clip: The blocks are the frames of one clip, in order and all with the same grid. Methods that compare
            frames take anything else for one frame.
    """

    features: Tensor
    aligned: Tensor | None
    grids: Sequence[Grid]
    layout: Layout | None = None
    attention: Sequence[TowerAttention] = ()
    tower: Tensor | None = None
    tower_cls: Tensor | None = None
    tower_features: Tensor | None = None
    padding: Tensor | None = None
    sequence: Tensor | None = None
    newlines: Tensor | None = None
    downsampled: Tensor | None = None
    downsampled_grids: Sequence[Grid] = ()
    is_clip: bool = False

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
        if self.is_clip and len(set(grids)) > 1:
            raise ValueError(f"the frames of a clip have one grid, got {list(grids)}")
        object.__setattr__(self, "grids", grids)

    def __len__(self) -> int:
        return len(self.features)

    @property
    def blocks(self) -> list[slice]:
        """The range of token indices of each block."""
        ends = list(accumulate(rows * columns for rows, columns in self.grids))
        return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]

    @property
    def frames(self) -> Tensor:
        """T×n×d, the features frame by frame. Anything but a clip is one frame of N tokens."""
        return self.features.unflatten(0, (len(self.grids) if self.is_clip else 1, -1))

    def in_sequence(self, indices: Tensor) -> Tensor:
        """Sort token indices into the order in which the language model receives the tokens."""
        if self.sequence is None:
            return indices.sort().values
        return indices[self.sequence.to(indices.device)[indices].argsort()]

    def quotas(self, indices: Tensor) -> tuple[int, ...]:
        """Count how many of these token indices fall into each block."""
        return count_in_blocks(indices, self.blocks)


def count_in_blocks(indices: Tensor, blocks: Sequence[slice]) -> tuple[int, ...]:
    """Count how many of these token indices fall into each block."""
    return tuple(int(((indices >= block.start) & (indices < block.stop)).sum()) for block in blocks)


@dataclass(frozen=True)
class TextGuide:
    """The question, embedded in the space of `VisualTokens.aligned`.

    Attributes:
        tokens: M×c, one row per word token of the question, or a list of such matrices if the question was split into
            segments (CLIP takes 77 tokens at a time). Under the `slots` layout there is one row per position of the
            encoder's sequence, including BOS, EOS and padding; see `TextLayout`.
        pooled: c, one vector for the whole question, or a list with one vector per segment.
        words: The text of each of the M tokens, over all segments.
        sign: Factor on the cosine similarities. −1 where the encoder's raw maps highlight the background (CLIP), +1
            where they highlight the object. It is a property of the encoder, not of the method.
    """

    tokens: Tensor | Sequence[Tensor] | None
    pooled: Tensor | Sequence[Tensor] | None
    words: Sequence[str] | None = None
    sign: float = -1.0


@dataclass(frozen=True)
class Relevance:
    """The instruction relevance score and every intermediate result, for M words and N visual tokens in B blocks.

    Attributes:
        similarity: M×N, c_ij = sign · cos(t_i, v_j) (Eq. 3).
        entropy: M×B, h_i of each word over the tokens of each block (Eq. 5).
        dispersion: M×B, what the word filter ranks by: the entropy or the chosen alternative. Larger is more dispersed.
        kept: M×B, true for the words that pass the filter (Eq. 6).
        weights: M×N, the weight α of each word in each token's score (Eq. 7). 0 for words that were filtered out.
        dense_score: N, S^D, the dense guidance score (Eq. 8). None without words.
        global_score: N, S^G, the global guidance score (Eq. 2). None without pooled text.
        fused: N, μ·S^G + (1−μ)·S^D (Eq. 9).
        score: N, S^I: `fused` after min-max normalization, in [0, 1] (Eq. 10).
        smoothed: N, the score after Gaussian smoothing (Eq. 11). None before stage 2.
        polarized: N, ŝ: the smoothed score to the power β (Eq. 12). None before stage 2.
        words: The text of each word, if known.
        is_constant: Whether the fused score is the same everywhere (in any block, if each is normalized separately), as
            one boolean on the device.
        notes: Sentences about anything that was done differently from what was asked.
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
    is_constant: Tensor | None = None
    notes: tuple[str, ...] = ()

    @property
    def word_entropy(self) -> Tensor:
        """M, the lowest entropy of each word over the blocks."""
        return self.entropy.amin(1)

    @property
    def word_weight(self) -> Tensor:
        """M, the mean weight of each word over the tokens."""
        return self.weights.mean(1)

    @property
    def word_kept(self) -> Tensor:
        """M, true for words that are kept in at least one block."""
        return self.kept.any(1)


@deferrable(
    *("indices", "order", "gains", "coverage", "bound", "quotas", "scores", "merge", "rows", "newlines", "per_layer"),
    *("relevance", "notes", "problem"),
)
@dataclass(frozen=True)
class Selection(WithDeferredFields):
    """Which of the N visual tokens are kept, and how the method chose them.

    On a device, `indices` stay there, and what the host does not need to know (coverage, bound, quotas, order, …) is
    computed when it is asked for: the first of them that is read waits for the device. Input that is not finite is
    noticed then, too; `check` raises for it.

    Attributes:
        indices: K, the kept tokens, sorted. On the CPU where their number depends on the image.
        total: N.
        method: The method's name, including the variant if the model required one.
        order: K, the kept tokens in the order in which they were picked.
        gains: K, the marginal gain of each pick, in the same order.
        coverage: How much of the weighted image the kept tokens represent, in [0, 1]: 0 is what the best single token
            represents (of each block, if there are several), 1 is everything. See `core.coverage_of`.
        bound: Upper bound on the coverage of any K tokens, for this image and question.
        quotas: Number of kept tokens in each block.
        scores: N, the values by which the method ranked the tokens.
        merge: K×N merge weights where kept tokens absorb others: output row k is Σ_j merge[k, j] · row j. `indices` are
            then the K positions that the output rows fill. K×(N + E) where E further rows take part: the `downsampled`
            tokens or the CLS tokens. None where rows are passed on unchanged.
        merge_space: Whether `merge` applies to the projected features or to rows of the tower, before the projector.
        rows: K, the token that each row of `merge` stands for, in the order in which the language model receives them;
            −1 for a row that stands for no token (a mean, CLS). None if row k stands for token indices[k].
        newlines: Number of newline tokens that the language model receives in addition.
        per_layer: Number of tokens that each layer of the language model processes. Empty if it is the same for all.
        relevance: The relevance scores, for methods that compute them.
        notes: Sentences about anything that was done differently from what was asked.
        problem: What was wrong with the input, so that the selection is meaningless. None if it was all right. On the
            CPU, methods raise instead.
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
    problem: str | None = None

    def check(self) -> None:
        """Raise ValueError if the input was not finite, so that the selection is meaningless."""
        if self.problem is not None:
            raise ValueError(self.problem)

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def tokens_sent(self) -> int:
        """Number of tokens that the language model receives for this image: kept tokens and newlines."""
        return len(self) + self.newlines

    @property
    def mask(self) -> Tensor:
        """N, true for the kept tokens."""
        mask = self.indices.new_zeros(self.total, dtype=torch.bool)
        mask[self.indices] = True
        return mask

    @property
    def layers(self) -> tuple[tuple[int, int], ...]:
        """(layer, tokens from this layer on) for each cut within the language model. Layers count from 0."""
        pairs = zip(self.per_layer, self.per_layer[1:], strict=False)
        return tuple((layer, after) for layer, (before, after) in enumerate(pairs, start=1) if before != after)

    @property
    def tokens_after(self) -> int:
        """Number of tokens left after the last cut."""
        return len(self)

    @property
    def tokens_layer_mean(self) -> float:
        """Mean number of tokens per layer of the language model."""
        return sum(self.per_layer) / len(self.per_layer) if self.per_layer else float(len(self))

    @property
    def words(self) -> tuple[str, ...] | None:
        """The text of the question's words, if known."""
        return self.relevance.words if self.relevance else None
