"""Metrics of the pruning, for Prometheus and for the log.

The workers are separate processes. vLLM's endpoint shows their metrics only if PROMETHEUS_MULTIPROC_DIR is set, as
`eadp serve` does. The log has a summary in any case.
"""

from __future__ import annotations

import os
import time
from typing import Any

from prometheus_client import REGISTRY, Counter, Histogram

from eadp.serve.compat import get_tensor_model_parallel_rank, init_logger

logger = init_logger(f"vllm.{__name__}")

LOG_INTERVAL = 10.0
"""Seconds between two summaries in the log."""
BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
"""The bounds of the histogram of pruning times, in milliseconds."""


class Metrics:
    """The counters of a worker. If several ranks share a model, only the first one counts."""

    def __init__(self, model_name: str, engine: int) -> None:
        """Create the counters, or find those that another engine in this process has created.

        Args:
            model_name: The name under which the model is served.
            engine: The number of the engine among those of the server.
        """
        self.active = get_tensor_model_parallel_rank() == 0
        if folder := os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
            # On another node than the server's, it does not exist yet.
            os.makedirs(folder, exist_ok=True)
        self._labels = {"model_name": model_name, "engine": str(engine)}
        self._images = self._counter("eadp:images", "Images and clips that reached the vision side.")
        self._cached = self._counter("eadp:images_cached", "Images and clips whose features were in the cache.")
        self._tokens = self._counter("eadp:visual_tokens", "Tokens of the pruned images and clips before pruning.")
        self._kept = self._counter("eadp:visual_tokens_kept", "Tokens of the pruned images and clips after pruning.")
        self._failed = self._counter("eadp:selection_failures", "Images and clips on which the method failed.")
        self._warmups = self._counter("eadp:warmups", "Selections that were made before the server took requests.")
        self._time = self._collector(
            Histogram,
            "eadp:pruning_milliseconds",
            "Time to encode the question and select the tokens of one image or clip.",
            buckets=BUCKETS,
        )
        self._since = time.monotonic()
        self._sums = [0, 0, 0, 0.0]

    def count_images(self, count: int, cached: int) -> None:
        """Count images and clips, and those of them whose features were in the cache."""
        if self.active:
            self._images.inc(count)
            self._cached.inc(cached)

    def record_pruning(self, tokens: int, kept: int, seconds: float) -> None:
        """Record the pruning of one image or clip: its tokens before and after, and the time it took."""
        if not self.active:
            return
        self._tokens.inc(tokens)
        self._kept.inc(kept)
        self._time.observe(1000 * seconds)
        self._sums = [old + new for old, new in zip(self._sums, (1, tokens, kept, 1000 * seconds), strict=True)]

    def record_failure(self) -> None:
        """Count an image or clip on which the method failed."""
        if self.active:
            self._failed.inc()

    def record_warmup(self) -> None:
        """Count a selection that was made before the server takes requests."""
        if self.active:
            self._warmups.inc()

    def log_summary(self) -> None:
        """Log the sums since the last summary, at most every `LOG_INTERVAL` seconds."""
        images, tokens, kept, milliseconds = self._sums
        now = time.monotonic()
        if not images or now - self._since < LOG_INTERVAL:
            return
        logger.info(
            "eadp: %d images pruned, %d → %d visual tokens, %.1f ms per image",
            images,
            tokens,
            kept,
            milliseconds / images,
        )
        self._since, self._sums = now, [0, 0, 0, 0.0]

    def _counter(self, name: str, description: str) -> Any:
        return self._collector(Counter, name, description)

    def _collector(self, kind: Any, name: str, description: str, **options: Any) -> Any:
        known = getattr(REGISTRY, "_names_to_collectors", {})
        collector = known.get(name) or kind(name, description, tuple(self._labels), **options)
        return collector.labels(**self._labels)
