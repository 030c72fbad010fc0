"""The worker side of the plugin: encode the images, select their tokens, and return the kept rows to the engine."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from eadp.methods import Uniform
from eadp.models.guides import EmbeddingGuide
from eadp.runtime.choose import Budget, Chooser, GroupSelection
from eadp.runtime.kept_columns import kept_slots
from eadp.serve.compat import cached_tokenizer_from_config, init_logger
from eadp.serve.features import EncodedFeatures, FeatureCache, FeatureKey
from eadp.serve.metrics import Metrics
from eadp.serve.processing import MEDIA_KEY_FIELD, REQUEST_FIELD, PruningProcessor, is_attention_available
from eadp.serve.request import Request, ServerSettings
from eadp.serve.vision import ServedVision
from eadp.serve.vllm_base import VllmBase

logger = init_logger(f"vllm.{__name__}")

Item = dict[str, Tensor]
"""The engine's tensors for one image or clip, by field name."""


class PruningModel(VllmBase):
    """Mixin that prunes the images and clips of a vLLM model. List it before vLLM's class among the bases.

    A family implements `split_batch`, `count_tower_tokens`, `encode_items` and `vision`.

    Attributes:
        processor: The processor class of the family.
        eadp_settings: The settings of the server.
        eadp_features: The cache of unpruned features.
        eadp_metrics: The metrics of this worker.
        eadp_guide: The text encoder that guides the selection; None if the server was started without one.
        eadp_word_guide: The guide of methods that read the question as input embeddings of the language model.
        eadp_max_batch_tokens: The number of tokens that the vision tower may encode at once.
        eadp_model_config: vLLM's configuration of the model.
    """

    processor: ClassVar[type[PruningProcessor]]

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        attention_available = is_attention_available(vllm_config.model_config.multimodal_config)
        self.eadp_settings = ServerSettings.from_config(self.config, self.processor.positions, attention_available)
        self.eadp_features = FeatureCache(self.eadp_settings.cache_mib << 20)
        model_name = vllm_config.model_config.served_model_name
        self.eadp_metrics = Metrics(
            model_name[0] if isinstance(model_name, list) else model_name,
            vllm_config.parallel_config.data_parallel_index,
        )
        self.eadp_guide: Any = None
        self.eadp_word_guide: Any = None
        self.eadp_max_batch_tokens = vllm_config.scheduler_config.max_num_batched_tokens
        self.eadp_model_config = vllm_config.model_config

    @abstractmethod
    def split_batch(self, batch: dict[str, Any]) -> list[Item]:
        """Split the engine's batch into its images or clips.

        Args:
            batch: The fields of the batch, without those of the plugin. All its items have the same modality.

        Returns:
            The tensors of each image or clip.
        """

    @abstractmethod
    def count_tower_tokens(self, item: Item) -> int:
        """Return the number of tokens that the vision tower computes for an image or clip."""

    @abstractmethod
    def encode_items(
        self, items: Sequence[Item], layers: Sequence[int], outputs: Sequence[str]
    ) -> list[EncodedFeatures]:
        """Run the vision tower and the projector.

        Args:
            items: The images or clips.
            layers: The layers of the vision tower whose attention is recorded.
            outputs: Which of `SERVED_OUTPUTS` to return too.

        Returns:
            The unpruned features of each item.
        """

    @property
    @abstractmethod
    def vision(self) -> ServedVision:
        """The geometry of the family, with the projector of this model."""

    def build_word_guide(self) -> EmbeddingGuide:
        """Build the guide from the language model's input embeddings, once the weights are loaded."""
        tokenizer = cached_tokenizer_from_config(self.eadp_model_config)
        return EmbeddingGuide(self.language_model.model.embed_tokens, tokenizer)

    def prepare_for_engine(self, encoded: EncodedFeatures, slots: Tensor, rows: Tensor) -> Tensor:
        """Bring the kept rows into the form that the engine expects. By default they stay as they are.

        Args:
            encoded: The unpruned features.
            slots: K, the placeholders of the unpruned image that the kept rows filled.
            rows: K×(d + extra channels), the kept rows.

        Returns:
            The rows for the engine, K×(any number of channels).
        """
        return rows

    def embed_multimodal(self, **kwargs: Any) -> list[Tensor]:
        # vLLM never mixes modalities in a batch.
        modality = next((each for each in self.processor.modalities if REQUEST_FIELD[each] in kwargs), None)
        if modality is None:
            return []
        requests = [Request.from_tensor(data) for data in kwargs.pop(REQUEST_FIELD[modality])]
        media_keys = [bytes(data.tolist()) for data in kwargs.pop(MEDIA_KEY_FIELD[modality])]
        keys = [
            (media_key, self.eadp_settings.attention_layers(request.method), request.outputs)
            for media_key, request in zip(media_keys, requests, strict=True)
        ]
        features = self._encode_with_cache(self.split_batch(kwargs), keys)
        pruned = [self._prune(encoded, request) for encoded, request in zip(features, requests, strict=True)]
        self.eadp_metrics.log_summary()
        return pruned

    def _encode_with_cache(self, items: Sequence[Item], keys: Sequence[FeatureKey]) -> list[EncodedFeatures]:
        found = {key: encoded for key in keys if (encoded := self.eadp_features.get(key)) is not None}
        missing = {key: item for key, item in zip(keys, items, strict=True) if key not in found}
        for batch in self._batches(missing):
            _, layers, outputs = batch[0]
            features = self.encode_items([missing[key] for key in batch], layers, outputs)
            for key, encoded in zip(batch, features, strict=True):
                found[key] = encoded
                self.eadp_features.put(key, encoded)
        self.eadp_metrics.count_images(len(keys), cached=len(keys) - len(missing))
        return [found[key] for key in keys]

    def _batches(self, items: dict[FeatureKey, Item]) -> Iterator[list[FeatureKey]]:
        """Group items that need the same outputs of the tower, up to the engine's token budget per group.

        The engine counts only the kept tokens, but the tower computes all of them.
        """
        batch: list[FeatureKey] = []
        remaining = self.eadp_max_batch_tokens
        for key in sorted(items, key=lambda key: key[1:]):
            tokens = self.count_tower_tokens(items[key])
            if batch and (tokens > remaining or batch[0][1:] != key[1:]):
                yield batch
                batch, remaining = [], self.eadp_max_batch_tokens
            batch.append(key)
            remaining -= tokens
        if batch:
            yield batch

    def _prune(self, encoded: EncodedFeatures, request: Request) -> Tensor:
        """Return the kept rows of an image or clip, in the form that the engine expects."""
        layout, method, total = encoded.image.layout, request.method, len(encoded.image)
        if request.keeps_all(total):
            return self.prepare_for_engine(encoded, torch.arange(layout.length), encoded.rows)
        expected = request.count_sent(total, len(layout.newline_slots), layout.layout is not None)
        start = time.perf_counter()
        guide = None
        if request.reads_question:
            guide = self.eadp_word_guide if request.reads_word_embeddings else self.eadp_guide
        chooser = Chooser(method, guide, self.vision, newlines=request.newlines)
        chosen = self._select(chooser, encoded, request.question, expected)
        selection, rows, slots, width = chosen.selection, encoded.rows, layout.slots, encoded.width
        if (merge := chosen.merge(0, slots, chooser.vision)) is not None:
            merge = merge.with_columns(request.positions)
            sources, rows = rows[slots.to(rows.device)], rows.clone()
            # The channels after the first d (DeepStack) get the same weighted sums, without the projector.
            new = torch.cat([merge.merged_rows(sources[:, :width]), merge.mix(sources[:, width:])], dim=1)
            rows[merge.kept.to(rows.device)] = new
        kept = kept_slots(layout, selection.indices.cpu(), chooser.newlines, selection.newlines).nonzero().flatten()
        rows = rows[kept.to(rows.device)]
        if not method.keeps_deepstack:
            rows = torch.cat([rows[:, :width], torch.zeros_like(rows[:, width:])], dim=1)
        pruned = self.prepare_for_engine(encoded, kept, rows)
        self.eadp_metrics.record_pruning(total, len(selection), time.perf_counter() - start)
        return pruned

    def _select(self, chooser: Chooser, encoded: EncodedFeatures, question: str, expected: int) -> GroupSelection:
        """Return the method's selection, or evenly spread tokens if the method fails.

        The prompt already has its placeholders, and an exception would stop the engine for all clients. So a failure
        is logged and counted instead.

        Args:
            chooser: The method with its guide.
            encoded: The unpruned features.
            question: The question, "" if the method reads none.
            expected: The number of placeholders that the prompt has for this image or clip.
        """
        try:
            layout, device = encoded.image.layout, encoded.features.device
            text = None if chooser.guide is None else chooser.encode_question(question, device)
            newlines = encoded.rows[layout.newline_slots.to(encoded.rows.device), : encoded.width]
            chosen = chooser.select(Budget([encoded.image], encoded.features, text, newlines))
            selection = chosen.selection
            selection.check()
            found = int(kept_slots(layout, selection.indices.cpu(), chooser.newlines, selection.newlines).sum())
            if found != expected:
                raise ValueError(f"{selection.method} kept {found} tokens, but the prompt has {expected} placeholders")
        except Exception:
            logger.exception(
                "%s failed on an image or clip; evenly spread tokens are kept instead", chooser.method.name
            )
            self.eadp_metrics.record_failure()
            newline_count = len(encoded.image.layout.newline_slots) if chooser.newlines == "all" else 0
            even = Chooser(Uniform(keep=expected - newline_count), None, chooser.vision, newlines=chooser.newlines)
            chosen = even.select(Budget([encoded.image], encoded.features))
        return chosen
