"""What methods share that merge tokens: in which space, and in which order the language model gets the rows."""

from __future__ import annotations

from eadp.core import MergeSpace, VisualTokens


def merging_space(tokens: VisualTokens) -> tuple[MergeSpace, tuple[str, ...]]:
    """Before the projector, as the releases do, where the model has rows that it takes; and a note where not."""
    if tokens.tower is not None:
        return "tower", ()
    return "features", ("merged behind the projector: this model's takes no row of the tower by itself",)


def blocks_in_sequence(tokens: VisualTokens) -> list[int]:
    """The blocks in the order in which the language model gets them, each by its first token."""
    first = [block.start if tokens.sequence is None else int(tokens.sequence[block].min()) for block in tokens.blocks]
    return sorted(range(len(first)), key=first.__getitem__)


def crops_are_joined(tokens: VisualTokens) -> bool:
    """The local crops form one mosaic behind the whole image (LLaVA-NeXT, LLaVA-OneVision). Models that put the whole
    image last have other tokens between their tiles."""
    return tokens.layout is not None and len(tokens.grids) > 1 and blocks_in_sequence(tokens)[0] == 0
