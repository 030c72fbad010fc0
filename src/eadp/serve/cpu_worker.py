"""The CPU worker of the plugin."""

from __future__ import annotations

from typing import Any

import torch

from eadp.serve.compat import (
    MULTIMODAL_REGISTRY,
    CPUWorker,
    ImageDummyOptions,
    TimingContext,
    get_pp_group,
    group_and_batch_mm_kwargs,
)

WARM_UP_SIDE = 224
"""The width and height of the image of the warm-up, in pixels."""


class PruningCPUWorker(CPUWorker):
    """vLLM's CPU worker with two things that its GPU worker does: both concern multimodal models only.

    It asks models with M-RoPE for positions again after encoding, and it encodes an image before the server takes
    requests. vLLM's profiling run, which does the second, is left out on CPUs with `--enforce-eager`.
    """

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        super().load_model(*args, **kwargs)
        enabled = self.model_config.multimodal_config.is_multimodal_pruning_enabled()
        self.model_runner.is_multimodal_pruning_enabled = enabled

    def determine_available_memory(self) -> int:
        if get_pp_group().is_first_rank:
            self._warm_up()
        return super().determine_available_memory()

    @torch.inference_mode()
    def _warm_up(self) -> None:
        processor = MULTIMODAL_REGISTRY.create_processor(self.model_config)
        if not processor.info.allowed_mm_limits.get("image"):
            return
        inputs = processor.get_dummy_inputs(
            self.model_config.max_model_len,
            {"image": 1},
            {"image": ImageDummyOptions(count=1, width=WARM_UP_SIDE, height=WARM_UP_SIDE)},
        )
        (image,) = processor.apply(inputs, TimingContext(enabled=False))["mm_kwargs"]["image"]
        for _, _, batch in group_and_batch_mm_kwargs([("image", image)], device=self.device):
            self.get_model().embed_multimodal(**batch)
