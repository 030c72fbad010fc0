"""The classes of a classifying vision tower, for models with EfficientNet-Lite (eadp.models.efficientnet_lite)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from eadp.core import TextGuide, TextLayout
from eadp.models.guides.base import Guide, Space
from eadp.models.guides.class_words import class_words


class ClassifierGuide(Guide):
    """PLACEHOLDER"""

    space: ClassVar[Space] = "tower"
