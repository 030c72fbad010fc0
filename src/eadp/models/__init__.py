"""The families of models: where their visual tokens are (geometry), and how to run their vision side (adapter)."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

from torch import nn

from eadp.compat import TRANSFORMERS_FLOOR, require_transformers
from eadp.models.adapter import FamilyAdapter
from eadp.models.geometry import FamilyGeometry
from eadp.models.layout import ImageLayout


@dataclass(frozen=True)
class FamilyEntry:
    """Where a family is defined. It is imported when a model needs it, so a family that cannot be imported fails alone.

    Attributes:
        title: The name of the models, for error messages.
        module: The module that defines the family.
        name: The name of the family's adapter in it.
        since: The oldest minor release of transformers that the family works with.
    """

    title: str
    module: str
    name: str
    since: str = TRANSFORMERS_FLOOR

    def load(self) -> type[FamilyAdapter]:
        """Import the adapter of the family.

        Raises:
            ImportError: If the installed transformers is too old for it, or no longer has what it needs.
        """
        require_transformers(self.title, self.since)
        try:
            return getattr(import_module(self.module), self.name)
        except ImportError as error:
            raise ImportError(f"{self.title} cannot be used: {error}") from error


_IDEFICS3 = FamilyEntry("Idefics3 or SmolVLM", "eadp.models.tiles", "Idefics3Adapter")

FAMILIES: dict[str, FamilyEntry] = {
    "llava": FamilyEntry("LLaVA-1.5", "eadp.models.llava", "LlavaAdapter"),
    "llava_next": FamilyEntry("LLaVA-NeXT", "eadp.models.llava_next", "LlavaNextAdapter"),
    "llava_next_video": FamilyEntry("LLaVA-NeXT-Video", "eadp.models.llava_next", "LlavaNextVideoAdapter"),
    "llava_onevision": FamilyEntry("LLaVA-OneVision", "eadp.models.llava_onevision", "LlavaOnevisionAdapter"),
    "qwen2_5_vl": FamilyEntry("Qwen2.5-VL", "eadp.models.qwen", "Qwen2_5_VLAdapter"),
    "qwen3_vl": FamilyEntry("Qwen3-VL", "eadp.models.qwen", "Qwen3VLAdapter"),
    "internvl": FamilyEntry("InternVL", "eadp.models.tiles", "InternVLAdapter"),
    "idefics3": _IDEFICS3,
    "smolvlm": _IDEFICS3,
    "gemma3": FamilyEntry("Gemma 3", "eadp.models.gemma", "Gemma3Adapter"),
    "paligemma": FamilyEntry("PaliGemma", "eadp.models.gemma", "PaliGemmaAdapter"),
}
"""The supported families by the `model_type` of their configurations."""


def adapter_of(model: nn.Module) -> FamilyAdapter:
    """Build the adapter of a model.

    Args:
        model: A transformers model, or a module that contains one.

    Returns:
        The adapter of its family, on the module in which the model's vision side and its language model meet.

    Raises:
        ValueError: If no family supports the model.
        ImportError: If the family does not work with the installed transformers.
    """
    for module in model.modules():
        entry = FAMILIES.get(getattr(getattr(module, "config", None), "model_type", ""))
        if entry is None:
            continue
        adapter = entry.load()
        if adapter.text_name in dict(module.named_children()):
            return adapter(module)
    name = getattr(getattr(model, "config", None), "model_type", type(model).__name__)
    raise ValueError(f"eadp knows no family for {name!r}; it knows {', '.join(sorted(FAMILIES))}")


__all__ = ["FAMILIES", "FamilyAdapter", "FamilyEntry", "FamilyGeometry", "ImageLayout", "adapter_of"]
