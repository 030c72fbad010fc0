"""A worker for machines without GPU. vLLM's own never asks for positions again, as its GPU worker does."""

from __future__ import annotations

from typing import Any

from vllm.v1.worker.cpu_worker import CPUWorker


class CoordinatesWorker(CPUWorker):
    def load_model(self, *args: Any, **kwargs: Any) -> None:
        super().load_model(*args, **kwargs)
        self.model_runner.is_multimodal_pruning_enabled = True
