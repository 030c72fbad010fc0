"""What the vision side of a model made of an image, before anything is pruned, and a cache of it."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace

from torch import Tensor

from eadp.models.vision_call import EncodedImage

Key = tuple[bytes, tuple[int, ...], bool]
"""Which image, which layers of the vision tower were watched, and whether its rows before the projector are wanted."""


@dataclass(frozen=True)
class Look:
    """rows: length×(d + more), one for each placeholder: d channels for the language model, then others that follow
    them (DeepStack). width: d."""

    image: EncodedImage
    rows: Tensor
    width: int

    @property
    def features(self) -> Tensor:
        """N×d, what the method chooses from: without newlines."""
        return self.rows[self.image.layout.slots.to(self.rows.device), : self.width]

    @property
    def bytes(self) -> int:
        image = self.image
        tensors = [self.rows, image.states]
        if image.tower_rows is not None:
            tensors += [image.tower_rows.rows, image.tower_rows.cls]
        for layer in image.attention:
            tensors += [layer.keys, layer.cls, layer.received, layer.cls_full_width]
        return sum(each.numel() * each.element_size() for each in tensors if each is not None)

    def apart(self) -> Look:
        """With memory of its own: as a part of a batch it would keep all of that alive."""
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
        own = replace(image, states=_copy(image.states), tower_rows=tower_rows, attention=attention)
        return replace(self, image=own, rows=self.rows.clone())


def _copy(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.clone()


class LookCache:
    """The last looks, as many as fit. Another question about the same image then spares the vision tower."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.bytes = 0
        self._looks: OrderedDict[Key, Look] = OrderedDict()

    def __len__(self) -> int:
        return len(self._looks)

    def get(self, key: Key) -> Look | None:
        look = self._looks.get(key)
        if look is not None:
            self._looks.move_to_end(key)
        return look

    def put(self, key: Key, look: Look) -> None:
        if key in self._looks or look.bytes > self.limit:
            return
        self._looks[key] = look.apart()
        self.bytes += look.bytes
        while self.bytes > self.limit:
            self.bytes -= self._looks.popitem(last=False)[1].bytes
