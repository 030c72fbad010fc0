"""How much was pruned and how long it took: for Prometheus, and now and then a line in the log.

The workers are processes of their own. vLLM's endpoint shows what they count where PROMETHEUS_MULTIPROC_DIR is set
(`eadp serve` sets it); the log shows it always.
"""

from __future__ import annotations

import time
from typing import Any

from prometheus_client import REGISTRY, Counter, Histogram
from vllm.distributed import get_tensor_model_parallel_rank
from vllm.logger import init_logger

logger = init_logger(f"vllm.{__name__}")

LOG_EVERY = 10.0
"""Seconds."""
MILLISECONDS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


class Metrics:
    """Counted once, however many workers share a model: by the first of them."""

    def __init__(self) -> None:
        self.active = get_tensor_model_parallel_rank() == 0
        self._images = _counter("eadp:images", "Images and clips that reached the vision side.")
        self._spared = _counter("eadp:images_remembered", "Images and clips whose features were still there.")
        self._tokens = _counter("eadp:visual_tokens", "Tokens of the pruned images and clips, before.")
        self._kept = _counter("eadp:visual_tokens_kept", "Tokens of the pruned images and clips, after.")
        self._failed = _counter("eadp:selection_failures", "Images and clips on which the method failed.")
        self._time = _collector(
            Histogram,
            "eadp:pruning_milliseconds",
            "Encoding the question and choosing the tokens of one image or clip.",
            buckets=MILLISECONDS,
        )
        self._since = time.monotonic()
        self._sums = [0, 0, 0, 0.0]

    def images(self, count: int, spared: int) -> None:
        if self.active:
            self._images.inc(count)
            self._spared.inc(spared)

    def pruned(self, tokens: int, kept: int, seconds: float) -> None:
        if not self.active:
            return
        self._tokens.inc(tokens)
        self._kept.inc(kept)
        self._time.observe(1000 * seconds)
        self._sums = [old + new for old, new in zip(self._sums, (1, tokens, kept, 1000 * seconds), strict=True)]

    def failed(self) -> None:
        if self.active:
            self._failed.inc()

    def report(self) -> None:
        """A line in the log, if there is something new and the last is some time ago."""
        images, tokens, kept, milliseconds = self._sums
        now = time.monotonic()
        if not images or now - self._since < LOG_EVERY:
            return
        logger.info(
            "eadp: %d images pruned, %d → %d visual tokens, %.1f ms an image",
            images,
            tokens,
            kept,
            milliseconds / images,
        )
        self._since, self._sums = now, [0, 0, 0, 0.0]


def _counter(name: str, what: str) -> Any:
    return _collector(Counter, name, what)


def _collector(kind: Any, name: str, what: str, **options: Any) -> Any:
    """A second engine in the same process counts on with the same collectors."""
    known = getattr(REGISTRY, "_names_to_collectors", {})
    return known.get(name) or kind(name, what, **options)
