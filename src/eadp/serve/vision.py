"""The vision side of a model in vLLM, as selection and merging use it: a geometry and vLLM's own projector."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from eadp.core.types import Grid
from eadp.models.geometry import FamilyGeometry
from eadp.models.layout import ImageLayout
from eadp.models.vision_call import VisionCall


@dataclass(frozen=True)
class ServedVision:
    """A `VisionSide` without a transformers model.

    Attributes:
        geometry: The geometry of the family, from the model's configuration.
        project: The projector of the model in vLLM: K×w → K×d.
    """

    geometry: FamilyGeometry
    project: Callable[[Tensor], Tensor]

    @property
    def square_grids_only(self) -> bool:
        return self.geometry.square_grids_only

    def arrange(self, layout: ImageLayout, cells: Tensor) -> Tensor:
        return self.geometry.arrange(layout, cells)

    def encode(self, call: VisionCall, pixels: Tensor, grid: Grid) -> list[Tensor]:
        raise ValueError("a server does not encode images at another resolution; choose another method")
