"""The vLLM plugin, which prunes images and clips by the question.

vLLM finds `register` through the entry point group `vllm.general_plugins` and calls it in each of its processes. A
server opts in by naming one of `ARCHITECTURES` in `--hf-overrides`, as `eadp serve` does. Nothing in vLLM is patched:
each family is a subclass of vLLM's own model, with a subclass of its processor.
"""

from __future__ import annotations

from eadp.serve.plugin import ARCHITECTURES, register
from eadp.serve.versions import TESTED_VERSIONS

__all__ = ["ARCHITECTURES", "TESTED_VERSIONS", "register"]
