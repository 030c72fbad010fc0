"""Make two packages usable in the environments of the hosts, which have no GPU.

torchvision: its import fails if it was built for another torch, because its compiled operators are missing. The hosts
always import it, but use only its transforms. So if the import fails, the two operators that it needs at import are
declared, without an implementation.

Triton: vLLM uses its Model Runner V2 only if Triton has an active driver. With VLLM_USE_V2_MODEL_RUNNER=1 and
TRITON_INTERPRET=1, a driver of the CPU is declared. It does nothing: Triton's interpreter runs the kernels.

Python imports this file at startup if its folder is on PYTHONPATH, also in the processes that a host starts. It loads
nothing before one of the packages is imported.
"""

import os
import sys
from importlib.machinery import PathFinder


class _Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        around = _AROUND_IMPORT.get(name)
        spec = PathFinder.find_spec(name, path, target) if around else None
        if spec is not None:
            execute = spec.loader.exec_module
            spec.loader.exec_module = lambda module: around(execute, module)
        return spec


def _with_operators(execute, module):
    try:
        execute(module)
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
        import torch

        # The operators exist as long as the library object does.
        _Finder.operators = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            _Finder.operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        execute(module)


class _InterpretedDriver:
    @staticmethod
    def is_active():
        return True


def _with_driver(execute, module):
    execute(module)
    module.backends.setdefault("cpu", module.Backend(compiler=None, driver=_InterpretedDriver))


_AROUND_IMPORT = {"torchvision": _with_operators}
if os.environ.get("VLLM_USE_V2_MODEL_RUNNER") == os.environ.get("TRITON_INTERPRET") == "1":
    _AROUND_IMPORT["triton.backends"] = _with_driver
sys.meta_path.insert(0, _Finder)
