"""DivPrune: the tokens that differ most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from eadp.core import OrderedPicks, Selection, TextGuide, VisualTokens, max_min_by_quota, split_evenly
from eadp.methods._on_device import NOT_FINITE, concatenate, is_on_device, row_sums, select_picks
from eadp.methods.base import Newlines, register_method
from eadp.methods.before import BeforeMethod


@register_method
@dataclass(frozen=True)
class DivPrune(BeforeMethod):
    """Keep the T tokens that are farthest apart, whatever the question is.

    With d_ij = 1 − cos(f_i, f_j), the first token is the one whose nearest neighbour is farthest. Each next token is
    the one that is farthest from its nearest kept token.

    Paper: "DivPrune: Diversity-based Visual Token Pruning for Large Multimodal Models", CVPR 2025.

    Release, the default: All crops of an image form one pool, in which newline tokens compete with patches. A share
    counts newlines too, and T tokens stay, newlines included. Frames are pruned one by one, as in EADP's repository.

    Departures: `scope="block"` also prunes crops one by one, as EADP's repository does; `scope="image"` pools frames.

    Attributes:
        scope: "image": one pool per image or clip. "block": each crop or frame has the same share of the budget.
            "released": images are one pool, frames are pruned one by one.
    """

    name: ClassVar[str] = "divprune"
    citation: ClassVar[str] = "DivPrune (CVPR 2025)"
    newlines: ClassVar[Newlines] = "chosen"

    scope: Literal["released", "image", "block"] = "released"

    def count_sent(self, patches: int, newlines: int = 0, has_layout: bool = True) -> int:
        return self.count_to_keep(patches if self._prunes_by_block(has_layout) else patches + newlines)

    def select(self, tokens: VisualTokens, text: TextGuide | None = None) -> Selection:
        if is_on_device([tokens]):
            (selection,) = self._select_on_device([tokens])
        else:
            (selection,) = self._split_newlines([tokens], self.pick(tokens), [self._pool(tokens)])
        return selection

    def select_batch(self, batch: Sequence[VisualTokens], texts: Sequence[TextGuide | None]) -> list[Selection]:
        return self._select_on_device(batch) if is_on_device(batch) else super().select_batch(batch, texts)

    def _select_on_device(self, batch: Sequence[VisualTokens]) -> list[Selection]:
        """Select from all images at once. This waits only where newlines compete with tokens."""
        pools = [self._pool(tokens) for tokens in batch]
        blocks, start = [], 0
        for pool in pools:
            blocks += [slice(block.start + start, block.stop + start) for block in pool.blocks]
            start += len(pool.rows)
        quotas = [quota for pool in pools for quota in pool.quotas]
        rows = concatenate([pool.rows for pool in pools])
        picks = max_min_by_quota(rows, blocks, quotas, wait=False)
        if all(len(pool.rows) == len(tokens) for pool, tokens in zip(pools, batch, strict=True)):
            return select_picks(self.name, batch, picks, [sum(pool.quotas) for pool in pools], rows)
        # How many newlines are among the picks decides how many tokens stay.
        together = torch.cat([picks.indices.to(picks.gains), picks.gains, row_sums(rows).to(picks.gains)]).cpu()
        count = len(picks.indices)
        if not bool(together[2 * count :].isfinite().all()):
            raise ValueError(NOT_FINITE.format(method=self.name))
        return self._split_newlines(batch, OrderedPicks(together[:count].long(), together[count : 2 * count]), pools)

    def _split_newlines(
        self, batch: Sequence[VisualTokens], picks: OrderedPicks, pools: Sequence[_Pool]
    ) -> list[Selection]:
        """Return one selection per image from picks on the CPU, image after image."""
        sizes, start, selections = [sum(pool.quotas) for pool in pools], 0, []
        parts = zip(batch, pools, picks.indices.split(sizes), picks.gains.split(sizes), strict=True)
        for tokens, pool, indices, gains in parts:
            is_patch = indices - start < len(tokens)
            order = (indices - start)[is_patch]
            start += len(pool.rows)
            kept = order.sort().values
            selections.append(
                Selection(
                    kept,
                    len(tokens),
                    self.name,
                    order=order,
                    gains=gains[is_patch],
                    quotas=tokens.quotas(kept),
                    newlines=int((~is_patch).sum()),
                )
            )
        return selections

    def pick(self, tokens: VisualTokens) -> OrderedPicks:
        """Return the picks in order; indices from N on are newlines."""
        pool = self._pool(tokens)
        return max_min_by_quota(pool.rows, pool.blocks, pool.quotas)

    def _pool(self, tokens: VisualTokens) -> _Pool:
        if self._prunes_by_block(tokens.layout is not None):
            return _Pool(tokens.features, tokens.blocks, split_evenly(tokens.grids, self.count_to_keep(len(tokens))))
        rows = tokens.features
        if tokens.newlines is not None and len(tokens.newlines):
            rows = torch.cat([rows, tokens.newlines.to(rows)])
        return _Pool(rows, [slice(0, len(rows))], [self.count_to_keep(len(rows))])

    def _prunes_by_block(self, has_layout: bool) -> bool:
        """Whether each block is pruned by itself. Newlines are in no block, so they are never picked then."""
        return self.scope == "block" or (self.scope == "released" and not has_layout)


@dataclass(frozen=True)
class _Pool:
    """What the tokens of one image are picked from.

    Attributes:
        rows: Its tokens, and its newlines after them if they compete.
        blocks: The ranges of rows that are pruned by themselves.
        quotas: The number of picks of each.
    """

    rows: Tensor
    blocks: Sequence[slice]
    quotas: Sequence[int]
