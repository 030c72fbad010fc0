"""Methods that prune before the language model."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from eadp.core import Grid, Selection, TextGuide, TextLayout, VisualTokens
from eadp.methods.base import Method


@dataclass(frozen=True)
class BeforeMethod(Method):
    """A method that selects visual tokens before they enter the language model. Subclasses implement `select`.

    Attributes:
        uses_cls_attention: The method ranks tokens by the attention of the vision tower's CLS token, so where the tower
            has one, only that row is computed.
        newlines_after_frames: Of a clip, the newlines of a frame follow its kept tokens instead of ending their rows,
            if all of them stay and tokens are renumbered.
    """

    uses_cls_attention: ClassVar[bool] = False
    newlines_after_frames: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # A subclass with a `select` of its own must not get the `select_batch` of its base class.
        if "select" in cls.__dict__ and "select_batch" not in cls.__dict__:
            type.__setattr__(cls, "select_batch", BeforeMethod.select_batch)

    @abstractmethod
    def select(self, tokens: VisualTokens, text: TextGuide | None = None) -> Selection:
        """Select the tokens of one image (or clip) that stay.

        Args:
            tokens: The N visual tokens and whatever else `needs` names.
            text: The question, for methods that need "text".
        """

    def select_batch(self, batch: Sequence[VisualTokens], texts: Sequence[TextGuide | None]) -> list[Selection]:
        """Select the tokens of several images (or clips), each with its own question and budget.

        By default one after another, by `select`. Methods that override it work on all of them at once on a device.

        Args:
            batch: The visual tokens of each image.
            texts: The question of each image, for methods that need "text".
        """
        return [self.select(tokens, text) for tokens, text in zip(batch, texts, strict=True)]

    @property
    def text_layout(self) -> TextLayout:
        """How the question is given to a text encoder of fixed length."""
        return "words"

    def text_to_encode(self, question: str) -> str:
        """Return what of a question the text guide encodes. By default, all of it."""
        return question

    @property
    def keeps_deepstack(self) -> bool:
        """Whether kept tokens keep the DeepStack features that Qwen3-VL adds to them in its first layers."""
        return True

    @property
    def may_keep_fewer(self) -> bool:
        """Whether the method may keep fewer tokens than `keep`, so that it runs even if `keep` covers all of them."""
        return False

    def count_sent(self, patches: int, newlines: int = 0, has_layout: bool = True) -> int:
        """Return how many tokens of an image the language model receives, before the image is seen.

        Args:
            patches: The image's visual tokens.
            newlines: The newline tokens between its rows. Only methods that select among them count any.
            has_layout: Whether the blocks are crops of one image (`VisualTokens.layout`), not frames of a clip.
        """
        return self.count_to_keep(patches)

    def vision_layers(self, depth: int, family: str) -> tuple[int, ...]:
        """Return the layers of the vision tower, counted from 0, whose attention `select` finds in `tokens.attention`.

        Args:
            depth: How many layers the tower has.
            family: The `model_type` of the model.
        """
        return ()

    def choose_resolutions(self, grids: Sequence[Grid], square: bool) -> list[Grid]:
        """Return the grid at which each block is encoded again for `tokens.downsampled`; (0, 0) drops a block.

        Called for methods that need "pixels".

        Args:
            grids: (rows, columns) of each block.
            square: Whether the model accepts square images only.
        """
        return []
