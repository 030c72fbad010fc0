"""The side that runs the model: looks at the images, chooses their tokens, hands the engine what stays."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from vllm.logger import init_logger

from eadp.core import Selection
from eadp.methods import make
from eadp.models.family import Family
from eadp.runtime.choose import Chooser
from eadp.serve.features import Look, LookCache
from eadp.serve.metrics import Metrics
from eadp.serve.processing import IMAGE, REQUEST, PruningProcessor
from eadp.serve.request import Request, ServerSettings
from eadp.serve.stock import Stock

logger = init_logger(f"vllm.{__name__}")

Item = dict[str, Tensor]
"""What the engine hands over of one image."""


class PruningModel(Stock):
    """Before a stock model. Families say how to look at images."""

    processor: ClassVar[type[PruningProcessor]]

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        self.eadp_settings = ServerSettings.of(self.config, self.processor.positions)
        self.eadp_looks = LookCache(self.eadp_settings.cache_mib << 20)
        self.eadp_metrics = Metrics()
        self.eadp_guide: Any = None
        self.eadp_room = vllm_config.scheduler_config.max_num_batched_tokens
        self.eadp_place = vllm_config.model_config

    @abstractmethod
    def items(self, batch: dict[str, Any]) -> list[Item]:
        """The engine's batch of images, one by one."""

    @abstractmethod
    def tokens_of(self, item: Item) -> int:
        """How many tokens the vision tower gives for an image."""

    @abstractmethod
    def look(self, items: Sequence[Item]) -> list[Look]:
        """Run the vision side."""

    def family(self, kind: type[Family], **parts: Any) -> Family:
        """What `eadp.models` knows of the family, without a transformers model behind it."""
        base = nn.Module()
        for name, part in {"config": self.config, **parts}.items():
            setattr(base, name, part)
        return kind(base)

    def finished(self, look: Look, slots: Tensor, rows: Tensor) -> Tensor:
        """The rows that stay as the engine gets them. slots: which placeholders of the unpruned image they filled."""
        return rows

    def embed_multimodal(self, **kwargs: Any) -> list[Tensor]:
        if REQUEST not in kwargs:
            return []
        requests = [Request.from_tensor(data) for data in kwargs.pop(REQUEST)]
        keys = [bytes(data.tolist()) for data in kwargs.pop(IMAGE)]
        looks = self._looks(self.items(kwargs), keys)
        pruned = [self._pruned(look, request) for look, request in zip(looks, requests, strict=True)]
        self.eadp_metrics.report()
        return pruned

    def _looks(self, items: Sequence[Item], keys: Sequence[bytes]) -> list[Look]:
        found = {key: look for key in keys if (look := self.eadp_looks.get(key)) is not None}
        missing = {key: item for key, item in zip(keys, items, strict=True) if key not in found}
        for part in self._portions(missing):
            for key, look in zip(part, self.look([missing[key] for key in part]), strict=True):
                found[key] = look
                self.eadp_looks.put(key, look)
        self.eadp_metrics.images(len(keys), spared=len(keys) - len(missing))
        return [found[key] for key in keys]

    def _portions(self, items: dict[bytes, Item]) -> Iterator[list[bytes]]:
        """As many images at a time as the engine's budget allows: it counts what stays, the tower sees all."""
        part: list[bytes] = []
        room = self.eadp_room
        for key, item in items.items():
            tokens = self.tokens_of(item)
            if part and tokens > room:
                yield part
                part, room = [], self.eadp_room
            part.append(key)
            room -= tokens
        if part:
            yield part

    def _pruned(self, look: Look, request: Request) -> Tensor:
        """The rows of an image that stay, as the engine gets them."""
        picture, method, total = look.picture, request.method, len(look.picture)
        count = request.count(total)
        if method is None or count == total:
            return self.finished(look, torch.arange(picture.length), look.rows)
        start = time.perf_counter()
        guide = self.eadp_guide if request.reads else None
        chooser = Chooser(method, guide, "image", keep_newlines=True)
        selection = self._selected(chooser, look, request.question, count)
        kept, rows, slots = selection.indices.cpu(), look.rows, picture.slots
        if selection.merge is not None:
            rows = rows.clone()
            rows[slots[kept].to(rows.device)] = selection.merge.to(rows) @ look.rows[slots.to(rows.device)]
        stays = chooser.stays(picture, kept).nonzero().flatten()
        pruned = self.finished(look, stays, rows[stays.to(rows.device)])
        self.eadp_metrics.pruned(total, count, time.perf_counter() - start)
        return pruned

    def _selected(self, chooser: Chooser, look: Look, question: str, count: int) -> Selection:
        """The method's choice. Where it fails, and the log and a counter say so, tokens spread evenly: the prompt has
        its placeholders already, and an exception would end the engine for everyone."""
        try:
            text = None if chooser.guide is None else chooser.guide.encode(question)
            selection, _ = chooser.select([look.picture], look.features, text)
            if len(selection) != count:
                raise ValueError(f"{selection.method} kept {len(selection)} tokens, but the prompt has {count} places")
        except ValueError:
            logger.exception("%s failed on an image; tokens spread evenly stay instead", chooser.method.name)
            self.eadp_metrics.failed()
            even = Chooser(make("uniform", keep=count), None, "image", keep_newlines=True)
            selection, _ = even.select([look.picture], look.features, None)
        return selection
