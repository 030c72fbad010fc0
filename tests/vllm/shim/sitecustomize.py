"""Lets torchvision be imported where only its CUDA build is to be had beside a CPU torch.

Its compiled operators then cannot load, and importing it fails at the first that it describes to torch. Naming two is
enough for the transforms, which is all that image processors use. On PYTHONPATH, so that a server's processes have it.
"""

import sys
from importlib.abc import MetaPathFinder


class _BeforeTorchvision(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            # As long as the library object lives, its operators do.
            self.operators = torch.library.Library("torchvision", "DEF")
            self.operators.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            self.operators.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            sys.modules["torch.library"]._eadp_torchvision = self
        return None


sys.meta_path.insert(0, _BeforeTorchvision())
