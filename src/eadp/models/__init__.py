"""The families of models: where their visual tokens are (geometry), and how to run their vision side (adapter)."""

from __future__ import annotations

from torch import nn

from eadp.models.adapter import FamilyAdapter
from eadp.models.gemma import Gemma3Adapter, PaliGemmaAdapter
from eadp.models.geometry import FamilyGeometry
from eadp.models.layout import ImageLayout
from eadp.models.llava import LlavaAdapter
from eadp.models.llava_next import LlavaNextAdapter, LlavaNextVideoAdapter
from eadp.models.llava_onevision import LlavaOnevisionAdapter
from eadp.models.qwen import Qwen2_5_VLAdapter, Qwen3VLAdapter
from eadp.models.tiles import Idefics3Adapter, InternVLAdapter

FAMILIES: dict[str, type[FamilyAdapter]] = {
    model_type: adapter
    for adapter in (
        *(LlavaAdapter, LlavaNextAdapter, LlavaNextVideoAdapter, LlavaOnevisionAdapter),
        *(Qwen2_5_VLAdapter, Qwen3VLAdapter, InternVLAdapter, Idefics3Adapter, Gemma3Adapter, PaliGemmaAdapter),
    )
    for model_type in adapter.geometry_class.model_types
}
"""The adapter for each `model_type`."""


def adapter_of(model: nn.Module) -> FamilyAdapter:
    """Build the adapter of a model, on the module in which its vision side and its language model meet.

    Raises:
        ValueError: If the model belongs to no known family.
    """
    for module in model.modules():
        adapter = FAMILIES.get(getattr(getattr(module, "config", None), "model_type", ""))
        if adapter is not None and adapter.text_name in dict(module.named_children()):
            return adapter(module)
    name = getattr(getattr(model, "config", None), "model_type", type(model).__name__)
    raise ValueError(f"eadp knows no family for {name!r}; it knows {', '.join(sorted(FAMILIES))}")


__all__ = ["FAMILIES", "FamilyAdapter", "FamilyGeometry", "ImageLayout", "adapter_of"]
