"""A torchvision built for another torch fails on import because its compiled operators are not there.

Harnesses import it for everything and need its transforms only, so the two operators that it names at import are
declared, never implemented. Python imports this file by itself where its folder is on PYTHONPATH.
"""

import torch

try:
    import torchvision  # noqa: F401
except RuntimeError as error:
    if "torchvision::nms" not in str(error):
        raise
    OPERATORS = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        OPERATORS.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
except ImportError:
    pass
