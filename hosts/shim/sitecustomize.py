"""Make a torchvision that was built for another torch importable.

Its import fails because its compiled operators are missing. The hosts always import torchvision, but use only its
transforms. So if the import fails, the two operators that it needs at import are declared, without an implementation.

Python imports this file at startup if its folder is on PYTHONPATH, also in the processes that a host starts. It loads
nothing before torchvision is imported.
"""

import sys
from importlib.machinery import PathFinder


class _TorchvisionFinder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        spec = PathFinder.find_spec(name, path, target) if name == "torchvision" else None
        if spec is not None:
            execute = spec.loader.exec_module
            spec.loader.exec_module = lambda module: _execute_with_operators(execute, module)
        return spec


def _execute_with_operators(execute, module):
    try:
        execute(module)
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
        import torch

        # The operators exist as long as the library object does.
        _TorchvisionFinder.operators = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            _TorchvisionFinder.operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        execute(module)


sys.meta_path.insert(0, _TorchvisionFinder)
