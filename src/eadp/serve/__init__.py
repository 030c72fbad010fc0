"""The vLLM plugin: images pruned by the question, in the engine that people serve these models with.

vLLM finds `register` by its entry point group `vllm.general_plugins` and calls it in each of its processes. A server
opts in by naming one of `ARCHITECTURES` in `--hf-overrides`; `eadp serve` writes that line. Nothing of vLLM is patched:
each family is a subclass of the stock model with a processor of its own.
"""

from __future__ import annotations

from eadp.serve.plugin import ARCHITECTURES, register
from eadp.serve.versions import TESTED

__all__ = ["ARCHITECTURES", "TESTED", "register"]
