"""The unpruned features of an image or clip, and a cache for them."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from eadp.models.vision_call import EncodedImage
from eadp.serve.mrope import SpanLayout

FeatureKey = tuple[bytes, tuple[int, ...], tuple[str, ...]]
"""The image or clip, the recorded layers of the vision tower, and what else methods need of it (`SERVED_OUTPUTS`)."""


@dataclass(frozen=True)
class EncodedFeatures:
    """The unpruned output of the vision side for an image or clip.

    Attributes:
        image: Its layout and the outputs of the vision tower.
        rows: length×(d + extra), one row per placeholder: d channels for the input of the language model, then the
            DeepStack channels, if any.
        width: d.
        span: The rows of the prompt, on models with M-RoPE.
    """

    image: EncodedImage
    rows: Tensor
    width: int
    span: SpanLayout | None = None

    @property
    def features(self) -> Tensor:
        """N×d, the tokens that the method selects from, without newlines."""
        return self.rows[self.image.layout.slots.to(self.rows.device), : self.width]

    @property
    def num_bytes(self) -> int:
        """The memory of all tensors, in bytes."""
        image = self.image
        tensors = [self.rows, image.states, image.tower_features, image.padding]
        if image.tower_rows is not None:
            tensors += [image.tower_rows.rows, image.tower_rows.cls]
        for layer in image.attention:
            tensors += [layer.keys, layer.cls, layer.received, layer.cls_full_width]
        return sum(each.numel() * each.element_size() for each in tensors if each is not None)

    def clone(self) -> EncodedFeatures:
        """Return a copy with its own memory. Views of a batch would keep the whole batch in memory."""
        image = self.image
        attention = [
            replace(
                layer,
                keys=layer.keys.clone(),
                cls=_copy(layer.cls),
                received=_copy(layer.received),
                cls_full_width=_copy(layer.cls_full_width),
            )
            for layer in image.attention
        ]
        tower_rows = image.tower_rows
        if tower_rows is not None:
            tower_rows = replace(tower_rows, rows=tower_rows.rows.clone(), cls=_copy(tower_rows.cls))
        copied = replace(
            image,
            states=_copy(image.states),
            tower_rows=tower_rows,
            attention=attention,
            tower_features=_copy(image.tower_features),
            padding=_copy(image.padding),
        )
        return replace(self, image=copied, rows=self.rows.clone())


def _copy(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.clone()


class FeatureCache:
    """A least-recently-used cache of features. With it, another question about the same image skips the vision tower.

    Attributes:
        limit: The largest total size, in bytes.
        bytes: The current total size, in bytes.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.bytes = 0
        self._features: OrderedDict[FeatureKey, EncodedFeatures] = OrderedDict()
        self._reserved: Tensor | None = None

    def reserve(self, device: torch.device) -> None:
        """Take the memory of a full cache, so that vLLM's profiling counts it. The first image or clip releases it."""
        self._reserved = torch.zeros(self.limit, dtype=torch.uint8, device=device)

    @property
    def reserved_bytes(self) -> int:
        """The memory that `reserve` holds, in bytes."""
        return 0 if self._reserved is None else self._reserved.numel()

    def __len__(self) -> int:
        return len(self._features)

    def get(self, key: FeatureKey) -> EncodedFeatures | None:
        """Return the features for a key, or None if they are not in the cache."""
        features = self._features.get(key)
        if features is not None:
            self._features.move_to_end(key)
        return features

    def put(self, key: FeatureKey, features: EncodedFeatures) -> None:
        """Store a copy of the features and drop the least recently used ones. Features above the limit are ignored."""
        self._reserved = None
        if key in self._features or features.num_bytes > self.limit:
            return
        self._features[key] = features.clone()
        self.bytes += features.num_bytes
        while self.bytes > self.limit:
            self.bytes -= self._features.popitem(last=False)[1].num_bytes
