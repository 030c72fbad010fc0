"""The model for photographs: EfficientNet-Lite0 as the vision tower of a stock LLaVA with a language model of words.

    model, processor = eadp.load_pocket("photo")

The tower names 1,000 things. Its classes reach the language model as the embeddings of their names. The language model
is SmolLM2, which a LoRA taught to read them; `build_model` takes any other.
"""

from eadp.pocket.photo.model import build_model, build_processor, checkpoint, find_missing
from eadp.pocket.photo.tower import load_tower
from eadp.pocket.photo.visual_words import write_visual_words

__all__ = ["build_model", "build_processor", "checkpoint", "find_missing", "load_tower", "write_visual_words"]
