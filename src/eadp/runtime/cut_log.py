"""What was cut between the layers of a prefill. The host reads it when it needs to know which tokens stayed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import torch
from torch import Tensor

from eadp.core import Selection
from eadp.core.deferred import Deferred
from eadp.methods.base import Newlines
from eadp.methods.inside import Cut
from eadp.runtime.remaining_tokens import RemainingTokens


@dataclass(frozen=True)
class _Pending:
    """A selection that is known only on the device: of which group, and at which cut."""

    number: int
    cut: Cut
    selection: Selection


class CutLog:
    """The images' tokens that are left, by budget, and the selections that led there."""

    def __init__(self, remaining: Sequence[RemainingTokens], method: str, newlines: Newlines, depth: int) -> None:
        """Begin a log.

        Args:
            remaining: The images' tokens that entered the first layer, by budget.
            method: The name of the method.
            newlines: Which newlines stay.
            depth: The number of layers of the language model.
        """
        self.remaining = remaining
        self.method = method
        self.newlines = newlines
        self.depth = depth
        self._pending: list[_Pending] = []
        self._made: dict[int, list[Selection]] = {}

    @property
    def is_settled(self) -> bool:
        """Whether the host knows which tokens are left."""
        return not self._pending

    def add(self, number: int, cut: Cut, selection: Selection, rows: Tensor) -> Tensor:
        """Add the selection of one group, whose kept rows the host knows, and return the columns that are dropped."""
        self._made.setdefault(number, []).append(selection)
        return self.remaining[number].drop(rows, cut, self.newlines)

    def add_unread(self, number: int, cut: Cut, selection: Selection) -> None:
        """Add the selection of one group, which only the device knows."""
        self._pending.append(_Pending(number, cut, selection))

    def settle(self) -> None:
        """Read what only the device knows; this waits for it."""
        pending, self._pending = self._pending, []
        for each in pending:
            self.add(each.number, each.cut, each.selection, kept_in_row_order(each.selection).cpu())

    def columns(self, entered: Tensor | None) -> Tensor | None:
        """B×L, which columns of the prompts stayed to the end, before beams. entered: the same for the first layer."""
        if entered is None:
            return None
        self.settle()
        stayed = entered.clone()
        for image in (image for group in self.remaining for image in group.images):
            stayed[image.placed.row, image.placed.columns[~image.left]] = False
        return stayed

    def selections(self, before: Sequence[Selection]) -> list[Selection]:
        """What stayed to the end, one selection per image. before: the same for the first layer."""
        made = [selection for of_group in self._made.values() for selection in of_group]
        if self.is_settled and all(selection.indices.device.type == "cpu" for selection in made):
            return self._read_selections(before)
        read = Deferred(lambda: self._read_selections(before))
        return [_deferred(each, partial(_take, read, number)) for number, each in enumerate(before)]

    def _read_selections(self, before: Sequence[Selection]) -> list[Selection]:
        self.settle()
        parts: list[Selection] = []
        for number, group in enumerate(self.remaining):
            made = self._made.get(number, [])
            notes, scores = tuple(note for each in made for note in each.notes), made[0].scores if made else None
            parts += group.selections(list(before[len(parts) :]), self.method, self.depth, notes, scores)
        return parts


def _take(parts: Callable[[], list[Selection]], number: int) -> Selection:
    return parts()[number]


def _read_field(read: Callable[[], Selection], name: str) -> Any:
    return getattr(read(), name)


def _deferred(before: Selection, read: Callable[[], Selection]) -> Selection:
    """A selection all of whose fields are read when they are asked for."""
    known = ("total", "method", "merge_space")
    names = [each.name for each in fields(before) if each.name not in known]
    return before.changed(**{name: Deferred(partial(_read_field, read, name)) for name in names})


def kept_in_row_order(selection: Selection) -> Tensor:
    """The tokens that stay, in the order of their rows."""
    return selection.indices if selection.rows is None else selection.rows


def check_cut_selection(selection: Selection, cut: Cut, left: int) -> Selection:
    """Return the selection at a cut if the runtime can carry it out. Values on a device are not read.

    Args:
        selection: What the method returned.
        cut: The cut.
        left: How many tokens it had to select from.

    Raises:
        ValueError: If it keeps another number of tokens than the cut asks for, or its indices are wrong.
    """
    kept = selection.indices
    if selection.total != left or len(kept) != cut.keep:
        raise ValueError(
            f"{selection.method} must keep {cut.keep} of {left} tokens at layer {cut.layer}, "
            f"but kept {len(kept)} of {selection.total}"
        )
    if kept.device.type != "cpu":
        return selection
    if bool((kept.diff() <= 0).any()) or int(kept[0]) < 0 or int(kept[-1]) >= left:
        raise ValueError(f"{selection.method} must return sorted indices in 0…{left - 1} without repeats")
    if selection.rows is not None and not torch.equal(selection.rows.sort().values, kept):
        raise ValueError(f"{selection.method} must return rows that are its indices in another order")
    return selection


def read_together(selections: Sequence[Selection]) -> list[Any]:
    """The kept rows of several selections on the CPU; those on a device are read in one copy."""
    rows = [kept_in_row_order(selection) for selection in selections]
    there = [each for each in rows if each.device.type != "cpu"]
    if not there:
        return rows
    read = iter((there[0] if len(there) == 1 else torch.cat(there)).cpu().split([len(each) for each in there]))
    return [each if each.device.type == "cpu" else next(read) for each in rows]
