"""The worker side of the plugin: encode the images, select their tokens, and return the kept rows to the engine."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from eadp.core.warmup import warm_up
from eadp.models.guides import EmbeddingGuide
from eadp.runtime.choose import Budget, Chooser
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


QUESTION_WORD = " a"
"""A word of few tokens, of which the longest question is made."""


@dataclass(frozen=True)
class Profile:
    """What the profiling run selected from.

    Attributes:
        visual_tokens: The tokens of the image or clip.
        question_tokens: The tokens of the question, 0 if the method reads none.
        encoded: How many images or clips were encoded.
    """

    visual_tokens: int
    question_tokens: int
    encoded: int


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
        eadp_profile: What was selected before the first request; None if nothing was.
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
        self.eadp_profile: Profile | None = None

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
        if any(request.is_profile for request in requests):
            kwargs.pop(MEDIA_KEY_FIELD[modality])
            return self._profile(self.split_batch(kwargs))
        media_keys = [bytes(data.tolist()) for data in kwargs.pop(MEDIA_KEY_FIELD[modality])]
        keys = [
            (media_key, self.eadp_settings.attention_layers(request.method), request.outputs)
            for media_key, request in zip(media_keys, requests, strict=True)
        ]
        features = self._encode_with_cache(self.split_batch(kwargs), keys)
        pruned = [self._prune(encoded, request) for encoded, request in zip(features, requests, strict=True)]
        self.eadp_metrics.log_summary()
        return pruned

    def _profile(self, items: Sequence[Item]) -> list[Tensor]:
        """Take the memory that requests can take at most, and compile and load what the first request would.

        vLLM's profiling run gives the largest images or clips. All of them are encoded with what the server's method
        needs, then tokens of one are selected for the longest question, while the memory of the cache is taken too.

        Returns:
            The unpruned rows of each item, in the form that the engine expects.

        Raises:
            Exception: If the method fails, so that a server that could not prune does not start.
        """
        request = self.eadp_settings.build_request(None)
        layers = self.eadp_settings.attention_layers(request.method)
        # vLLM repeats one blank item. The cache would encode it only once, and nothing is computed to select from it.
        numbered = {
            (number.to_bytes(8, "big"), layers, request.outputs): _with_noise(item, number)
            for number, item in enumerate(items)
        }
        features = [
            encoded
            for batch in self._batches(numbered)
            for encoded in self.encode_items([numbered[key] for key in batch], layers, request.outputs)
        ]
        device = features[0].rows.device
        self.eadp_features.reserve(device)
        if device.type == "cpu":
            # Images with another number of crops run other loops than the one below.
            warm_up()
        total = len(features[0].image)
        if request.keeps_all(total) and request.method.takes_budget:
            request = replace(request, method=replace(request.method, keep=max(1, total // 2)))
        if request.prunes:
            question, tokens = self._longest_question() if request.reads_question else ("", 0)
            layout = features[0].image.layout
            expected = request.count_sent(total, len(layout.newline_slots), layout.layout is not None)
            self._keep_rows(features[0], replace(request, question=question), expected)
            for guide in (self.eadp_guide, self.eadp_word_guide):
                if guide is not None:
                    guide.forget()
            self.eadp_profile = Profile(total, tokens, len(features))
            self.eadp_metrics.record_warmup()
            logger.info("eadp: warmed up with %d visual tokens and a question of %d tokens", total, tokens)
        return [self.prepare_for_engine(each, torch.arange(each.image.layout.length), each.rows) for each in features]

    def _longest_question(self) -> tuple[str, int]:
        """Return a question of as many tokens as requests may have, or nearly, and its number of tokens."""
        tokenizer = cached_tokenizer_from_config(self.eadp_model_config)
        limit = self.eadp_settings.max_question_tokens
        words = limit
        while (tokens := len(tokenizer(question := QUESTION_WORD * words).input_ids)) > limit and words > 1:
            words = min(words - 1, words * limit // tokens)
        return question, tokens

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
        """Return the kept rows of an image or clip, in the form that the engine expects.

        The prompt already has its placeholders, and an exception would stop the engine for all clients. So if the
        method fails, evenly spread tokens are kept, and the failure is logged and counted.
        """
        layout, total = encoded.image.layout, len(encoded.image)
        if request.keeps_all(total):
            return self.prepare_for_engine(encoded, torch.arange(layout.length), encoded.rows)
        start = time.perf_counter()
        expected = request.count_sent(total, len(layout.newline_slots), layout.layout is not None)
        try:
            kept, rows = self._keep_rows(encoded, request, expected)
        except Exception:
            logger.exception(
                "%s failed on an image or clip; evenly spread tokens are kept instead", request.method.name
            )
            self.eadp_metrics.record_failure()
            kept = torch.arange(expected) * layout.length // expected
            rows = encoded.rows[kept.to(encoded.rows.device)]
        pruned = self.prepare_for_engine(encoded, kept, rows)
        self.eadp_metrics.record_pruning(total, int(torch.isin(layout.slots, kept).sum()), time.perf_counter() - start)
        return pruned

    def _keep_rows(self, encoded: EncodedFeatures, request: Request, expected: int) -> tuple[Tensor, Tensor]:
        """Select and merge tokens.

        Args:
            encoded: The unpruned features.
            request: The request, with its question.
            expected: The number of placeholders that the prompt has for this image or clip.

        Returns:
            The kept placeholders of the unpruned image or clip (K), and their rows (K×channels).

        Raises:
            ValueError: The method keeps another number of tokens than expected.
        """
        layout, method, rows, width = encoded.image.layout, request.method, encoded.rows, encoded.width
        guide = None
        if request.reads_question:
            guide = self.eadp_word_guide if request.reads_word_embeddings else self.eadp_guide
        chooser = Chooser(method, guide, self.vision, newlines=request.newlines)
        newlines = rows[layout.newline_slots.to(rows.device), :width]
        text = None if guide is None else chooser.encode_question(request.question, encoded.features.device)
        chosen = chooser.select(Budget([encoded.image], encoded.features, text, newlines))
        selection, slots = chosen.selection, layout.slots
        selection.check()
        kept = kept_slots(layout, selection.indices.cpu(), chooser.newlines, selection.newlines).nonzero().flatten()
        if len(kept) != expected:
            raise ValueError(f"{method.name} kept {len(kept)} tokens, but the prompt has {expected} placeholders")
        if (merge := chosen.merge(0, slots, chooser.vision)) is not None:
            merge = merge.with_columns(request.positions)
            sources, rows = rows[slots.to(rows.device)], rows.clone()
            # The channels after the first d (DeepStack) get the same weighted sums, without the projector.
            new = torch.cat([merge.merged_rows(sources[:, :width]), merge.mix(sources[:, width:])], dim=1)
            rows[merge.kept.to(rows.device)] = new
        is_moved = request.positions == "renumber" and chooser.moves_newlines(layout)
        rows = rows[(layout.with_newlines_after_frames(kept) if is_moved else kept).to(rows.device)]
        if not method.keeps_deepstack:
            rows = torch.cat([rows[:, :width], torch.zeros_like(rows[:, width:])], dim=1)
        return kept, rows


def _with_noise(item: Item, seed: int) -> Item:
    """Return an image or clip with random pixels in place of its own."""
    return {name: _noise_like(each, seed) if name.startswith("pixel_values") else each for name, each in item.items()}


def _noise_like(pixels: Tensor, seed: int) -> Tensor:
    generator = torch.Generator(pixels.device).manual_seed(seed)
    if pixels.is_floating_point():
        return torch.empty_like(pixels).normal_(generator=generator)
    return torch.empty_like(pixels).random_(0, 256, generator=generator)
