"""The adapter of a family: its geometry, on the modules of a transformers model."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn

from eadp.core.types import Grid
from eadp.models.geometry import FamilyGeometry
from eadp.models.layout import ImageLayout
from eadp.models.overrides import Overrides
from eadp.models.vision_call import TowerRows, VisionCall

if TYPE_CHECKING:
    from typing_extensions import Self


class FamilyAdapter:
    """Finds the parts of a model of one family, and runs its vision side. It never touches a cache, a mask or a hook.

    Attributes:
        geometry_class: The geometry of the family.
        text_name: The name of the language model in the base model.
        tower_name: The name of the vision tower in the base model.
        builds_masks: The base model builds 4-D masks itself, before it calls the language model.
        continues_with_images: The unpruned model accepts a new image on a KV cache that is not empty.
        base: The base model, in which vision side and language model meet.
        config: Its configuration.
        geometry: The geometry for this configuration.
    """

    geometry_class: ClassVar[type[FamilyGeometry]]
    text_name: ClassVar[str] = "language_model"
    tower_name: ClassVar[str] = "vision_tower"
    builds_masks: ClassVar[bool] = False
    continues_with_images: ClassVar[bool] = True

    def __init__(self, base: nn.Module) -> None:
        self.base: Any = base
        self.config: Any = base.config
        self.geometry = self.geometry_class(self.config)

    def on(self, base: nn.Module) -> Self:
        """The same adapter on a replica of the base model."""
        if base is self.base:
            return self
        adapter = copy.copy(self)
        adapter.base = base
        return adapter

    @property
    def text_model(self) -> nn.Module:
        """The language model."""
        return self.base.get_submodule(self.text_name)

    @property
    def tower(self) -> nn.Module:
        """The vision tower."""
        return self.base.get_submodule(self.tower_name)

    @property
    def has_cls(self) -> bool:
        """Whether the tower's sequences begin with a CLS token."""
        embeddings = getattr(self.tower, "embeddings", None)
        return any(hasattr(embeddings, name) for name in ("class_embedding", "cls_token"))

    @property
    def square_grids_only(self) -> bool:
        """Whether blocks can be encoded again only at square grids."""
        return self.geometry.square_grids_only

    def tower_attention(self) -> list[nn.Module]:
        """The attention modules of the tower, layer by layer."""
        # The attention of a pooling head has no configuration.
        return [
            module
            for module in self.tower.modules()
            if type(module).__name__.endswith("Attention") and hasattr(module, "config")
        ]

    def tower_states(self, call: VisionCall, output: Any) -> Tensor | None:
        """The hidden states of the tower that a guide aligns with text.

        Args:
            call: The call of the vision side.
            output: Its output. Beams may have repeated its `pooler_output`, never its hidden states.

        Returns:
            B×cells×d for all B tower sequences of the call; None where the model has no states to align.
        """
        return None

    def tower_cells(self, call: VisionCall, output: Any) -> Tensor:
        """The states of the tower that the projector reads, without CLS.

        Args:
            call: The call of the vision side.
            output: Its output.

        Returns:
            B×cells×w for all B tower sequences of the call, in the tower's own order.
        """
        return output.last_hidden_state[:, int(self.has_cls) :]

    def tower_rows(self, call: VisionCall, output: Any, layouts: Sequence[ImageLayout]) -> Sequence[TowerRows | None]:
        """The tokens of each image before the projector.

        Args:
            call: The call of the vision side.
            output: Its output.
            layouts: The layouts of its images.

        Returns:
            One entry per image; None where tokens are not one to one with rows that the projector takes.
        """
        return [None] * len(layouts)

    def project(self, rows: Tensor) -> Tensor:
        """Run the model's own projector on rows like those of `tower_rows`: K×w → K×d."""
        raise ValueError(f"the projector of {self.config.model_type} does not accept single rows of its vision tower")

    def arrange(self, layout: ImageLayout, cells: Tensor) -> Tensor:
        """Arrange values of tower cells as the model arranges its features: crops×cells×c → N×c."""
        return self.geometry.arrange(layout, cells)

    def encode(self, call: VisionCall, pixels: Tensor, grid: Grid) -> list[Tensor]:
        """Encode a block again at another resolution.

        Args:
            call: The call of the vision side that the block came with.
            pixels: The pixels of the block, as `FamilyGeometry.block_pixels` gives them.
            grid: Rows and columns of the tokens to get.

        Returns:
            rows·columns×d for the language model, then the same for each DeepStack layer.

        Raises:
            ValueError: If the vision tower takes images of one resolution only.
        """
        tower = type(self.tower).__name__
        raise ValueError(f"{tower} cannot encode an image at another resolution here; choose another method")

    def image_features(self, pixels: Tensor, **arguments: Any) -> Any:
        """Call the model's own `get_image_features`, past any hook or override."""
        model_class: Any = type(self.base)
        return model_class.get_image_features(self.base, pixels, return_dict=True, **arguments)

    def keep_padding(self, overrides: Overrides, processor: Any) -> None:
        """Make model and processor keep the tokens of padding that the model would crop away.

        Args:
            overrides: Where the changes are made, so that they can be undone.
            processor: The processor of the model.

        Raises:
            ValueError: If the family crops no padding away.
        """
        raise ValueError(f"{self.config.model_type} crops no padding away, so unpad=False would change nothing")
