"""The side that runs the model: looks at the images, chooses their tokens, hands the engine what stays."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from vllm.logger import init_logger

from eadp.methods import Uniform
from eadp.runtime.choose import Chooser, GroupSelection, kept_slots
from eadp.serve.features import Key, Look, LookCache
from eadp.serve.metrics import Metrics
from eadp.serve.processing import MEDIA_KEY, REQUEST, PruningProcessor, shows_attention
from eadp.serve.request import Request, ServerSettings
from eadp.serve.stock import Stock
from eadp.serve.vision import ServedVision

logger = init_logger(f"vllm.{__name__}")

Item = dict[str, Tensor]
"""What the engine hands over of one image or clip."""


class PruningModel(Stock):
    """Before a stock model. Families say how to look at images."""

    processor: ClassVar[type[PruningProcessor]]

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        shows = shows_attention(vllm_config.model_config.multimodal_config)
        self.eadp_settings = ServerSettings.of(self.config, self.processor.positions, shows)
        self.eadp_looks = LookCache(self.eadp_settings.cache_mib << 20)
        self.eadp_metrics = Metrics()
        self.eadp_guide: Any = None
        self.eadp_room = vllm_config.scheduler_config.max_num_batched_tokens
        self.eadp_place = vllm_config.model_config

    @abstractmethod
    def items(self, batch: dict[str, Any]) -> list[Item]:
        """The engine's batch of images, or of clips, one by one."""

    @abstractmethod
    def tokens_of(self, item: Item) -> int:
        """How many tokens the vision tower gives for an image or clip."""

    @abstractmethod
    def look(self, items: Sequence[Item], layers: Sequence[int], tower_rows: bool) -> list[Look]:
        """Run the vision side. layers: those of the tower whose attention is wanted; tower_rows: whether the tokens
        before the projector are."""

    @property
    @abstractmethod
    def vision(self) -> ServedVision:
        """The geometry of the family, with the projector of this model."""

    def finished(self, look: Look, slots: Tensor, rows: Tensor) -> Tensor:
        """The rows that stay as the engine gets them. slots: which placeholders of the unpruned image they filled."""
        return rows

    def embed_multimodal(self, **kwargs: Any) -> list[Tensor]:
        # vLLM never mixes modalities in a batch.
        modality = next((each for each in self.processor.modalities if REQUEST[each] in kwargs), None)
        if modality is None:
            return []
        requests = [Request.from_tensor(data) for data in kwargs.pop(REQUEST[modality])]
        images = [bytes(data.tolist()) for data in kwargs.pop(MEDIA_KEY[modality])]
        keys = [
            (image, self.eadp_settings.watched(request.method), request.merges_before_the_projector)
            for image, request in zip(images, requests, strict=True)
        ]
        looks = self._looks(self.items(kwargs), keys)
        pruned = [self._pruned(look, request) for look, request in zip(looks, requests, strict=True)]
        self.eadp_metrics.report()
        return pruned

    def _looks(self, items: Sequence[Item], keys: Sequence[Key]) -> list[Look]:
        found = {key: look for key in keys if (look := self.eadp_looks.get(key)) is not None}
        missing = {key: item for key, item in zip(keys, items, strict=True) if key not in found}
        for part in self._portions(missing):
            _, layers, tower_rows = part[0]
            for key, look in zip(part, self.look([missing[key] for key in part], layers, tower_rows), strict=True):
                found[key] = look
                self.eadp_looks.put(key, look)
        self.eadp_metrics.images(len(keys), spared=len(keys) - len(missing))
        return [found[key] for key in keys]

    def _portions(self, items: dict[Key, Item]) -> Iterator[list[Key]]:
        """As many images at a time as the engine's budget allows: it counts what stays, the tower sees all. Those
        of whose tower the same is wanted go together."""
        part: list[Key] = []
        room = self.eadp_room
        for key in sorted(items, key=lambda key: key[1:]):
            tokens = self.tokens_of(items[key])
            if part and (tokens > room or part[0][1:] != key[1:]):
                yield part
                part, room = [], self.eadp_room
            part.append(key)
            room -= tokens
        if part:
            yield part

    def _pruned(self, look: Look, request: Request) -> Tensor:
        """The rows of an image that stay, as the engine gets them."""
        layout, method, total = look.image.layout, request.method, len(look.image)
        if request.keeps_all(total):
            return self.finished(look, torch.arange(layout.length), look.rows)
        sent = request.sent(total, len(layout.newline_slots), layout.layout is not None)
        start = time.perf_counter()
        guide = self.eadp_guide if request.reads else None
        chooser = Chooser(method, guide, self.vision, newlines=request.newlines)
        chosen = self._selected(chooser, look, request.question, sent)
        selection, rows, slots = chosen.selection, look.rows, layout.slots
        if (merge := chosen.merge(0, slots, chooser.vision)) is not None:
            merge = merge.with_columns(request.positions)
            sources, rows = rows[slots.to(rows.device)], rows.clone()
            # Channels after the language model's own (DeepStack) are merged as they are.
            new = torch.cat([merge.merged_rows(sources[:, : look.width]), merge.mix(sources[:, look.width :])], dim=1)
            rows[merge.kept.to(rows.device)] = new
        stay = kept_slots(layout, selection.indices.cpu(), chooser.newlines, selection.newlines).nonzero().flatten()
        rows = rows[stay.to(rows.device)]
        if not method.keeps_deepstack:
            rows = torch.cat([rows[:, : look.width], torch.zeros_like(rows[:, look.width :])], dim=1)
        pruned = self.finished(look, stay, rows)
        self.eadp_metrics.pruned(total, len(selection), time.perf_counter() - start)
        return pruned

    def _selected(self, chooser: Chooser, look: Look, question: str, sent: int) -> GroupSelection:
        """The method's choice. Where it fails, and the log and a counter say so, tokens spread evenly: the prompt has
        its placeholders already, and an exception would end the engine for everyone."""
        try:
            text, layout = chooser.encode_question(question), look.image.layout
            newlines = look.rows[layout.newline_slots.to(look.rows.device), : look.width]
            chosen = chooser.select([look.image], look.features, text, newlines)
            selection = chosen.selection
            found = int(kept_slots(layout, selection.indices.cpu(), chooser.newlines, selection.newlines).sum())
            if found != sent:
                raise ValueError(f"{selection.method} kept {found} tokens, but the prompt has {sent} places")
        except ValueError:
            logger.exception("%s failed on an image or clip; tokens spread evenly stay instead", chooser.method.name)
            self.eadp_metrics.failed()
            newline_count = len(look.image.layout.newline_slots) if chooser.newlines == "all" else 0
            even = Chooser(Uniform(keep=sent - newline_count), None, chooser.vision, newlines=chooser.newlines)
            chosen = even.select([look.image], look.features, None)
        return chosen
