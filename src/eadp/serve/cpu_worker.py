"""The CPU worker of models with M-RoPE positions."""

from __future__ import annotations

from typing import Any

from eadp.serve.compat import CPUWorker


class MRopeCPUWorker(CPUWorker):
    """vLLM's CPU worker, made to ask the model for positions again after encoding, as vLLM's GPU worker does."""

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        super().load_model(*args, **kwargs)
        self.model_runner.is_multimodal_pruning_enabled = True
