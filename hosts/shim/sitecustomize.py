"""A torchvision built for another torch fails on import, because its compiled operators are not there.

Hosts import it for everything and need its transforms only, so where that happens, the two operators that it names at
import are declared, never implemented. Python imports this file by itself where its folder is on PYTHONPATH, so that
the processes that a host starts have it too; nothing is loaded before torchvision is.
"""

import sys
from importlib.machinery import PathFinder


class _TorchvisionFinder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        spec = PathFinder.find_spec(name, path, target) if name == "torchvision" else None
        if spec is not None:
            run = spec.loader.exec_module
            spec.loader.exec_module = lambda module: _run_with_operators(run, module)
        return spec


def _run_with_operators(run, module):
    try:
        run(module)
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
        import torch

        # As long as the library object lives, its operators do.
        _TorchvisionFinder.operators = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            _TorchvisionFinder.operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        run(module)


sys.meta_path.insert(0, _TorchvisionFinder)
