"""The model for photographs: EfficientNet-Lite0 as the vision tower of a stock LLaVA with a language model of words.

    tower = load_tower()
    model, processor = build_model(tower, *smol.load_language_model())

The tower names 1,000 things. Its classes reach the language model as the embeddings of their names.
"""

from eadp.pocket.photo.model import build_model, build_processor
from eadp.pocket.photo.tower import load_tower
from eadp.pocket.photo.visual_words import write_visual_words

__all__ = ["build_model", "build_processor", "load_tower", "write_visual_words"]
