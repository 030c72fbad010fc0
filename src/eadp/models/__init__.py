"""What is particular to a model: where its visual tokens are, and how to bring text to them."""

from __future__ import annotations

from torch import nn

from eadp.models.family import Family, Picture
from eadp.models.gemma import Gemma3, PaliGemma
from eadp.models.llava import Llava
from eadp.models.llava_next import LlavaNext, LlavaNextVideo
from eadp.models.llava_onevision import LlavaOnevision
from eadp.models.qwen import Qwen2_5_VL, Qwen3VL
from eadp.models.tiles import Idefics3, InternVL

FAMILIES: dict[str, type[Family]] = {
    name: family
    for family in (
        *(Llava, LlavaNext, LlavaNextVideo, LlavaOnevision),
        *(Qwen2_5_VL, Qwen3VL, InternVL, Idefics3, Gemma3, PaliGemma),
    )
    for name in family.types
}


def family_of(model: nn.Module) -> Family:
    """The family of a model, with the module in which its vision side and its language model meet."""
    for module in model.modules():
        family = FAMILIES.get(getattr(getattr(module, "config", None), "model_type", ""))
        if family is not None and family.text_name in dict(module.named_children()):
            return family(module)
    kind = getattr(getattr(model, "config", None), "model_type", type(model).__name__)
    raise ValueError(f"eadp knows no family for {kind!r}; it knows {', '.join(sorted(FAMILIES))}")


__all__ = ["FAMILIES", "Family", "Picture", "family_of"]
