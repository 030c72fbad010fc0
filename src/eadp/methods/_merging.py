"""Helpers of the methods that merge tokens: in which space, and in which order the language model receives the rows."""

from __future__ import annotations

from eadp.core import MergeSpace, VisualTokens


def choose_merge_space(tokens: VisualTokens) -> tuple[MergeSpace, tuple[str, ...]]:
    """Return where to merge, and notes for the selection.

    Releases merge before the projector. Where the projector does not accept single rows of the tower, tokens are merged
    after it, and a note says so.
    """
    if tokens.tower is not None:
        return "tower", ()
    return "features", ("merged after the projector: this model's projector does not accept single rows of the tower",)


def order_blocks(tokens: VisualTokens) -> list[int]:
    """Return the blocks in the order in which the language model receives them, judged by each block's first token."""
    first = [block.start if tokens.sequence is None else int(tokens.sequence[block].min()) for block in tokens.blocks]
    return sorted(range(len(first)), key=first.__getitem__)


def has_mosaic(tokens: VisualTokens) -> bool:
    """Whether the local crops form one mosaic that follows the whole image (LLaVA-NeXT, LLaVA-OneVision).

    Models that put the whole image last have other tokens between their tiles.
    """
    return tokens.layout is not None and len(tokens.grids) > 1 and order_blocks(tokens)[0] == 0
