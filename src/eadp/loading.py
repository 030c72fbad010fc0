"""Load a model and its processor by name: a checkpoint, the pocket model, or a random model of a known architecture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from eadp.architectures import untrained
from eadp.architectures.untrained import RANDOM
from eadp.models.guides import Guide, guide_for
from eadp.pocket.names import OFFLINE


def load_model(
    name: str, *, dtype: Any = "auto", device: str | None = None, layers: int | None = None
) -> tuple[Any, Any]:
    """Load a model and its processor.

    Weights are read from safetensors files only, and no code of a checkpoint is run.

    Args:
        name: `pocket`, `things`, `smol`, `photo`, the folder of a checkpoint, its name on the hub, or `random:` and the
            name of an architecture (`random:llava-1.5-7b`; see `eadp.architectures.configs.ARCHITECTURES`), which gets
            random weights.
        dtype: The type of the weights; "auto" for the checkpoint's own.
        device: "cpu", "cuda" or "cuda:1"; by default a GPU if there is one.
        layers: The number of layers of the language model that a random model has; by default all.

    Returns:
        The model, in evaluation mode, and its processor.

    Raises:
        ValueError: If there is no such model or device, or if the model cannot be shortened.
    """
    try:
        target = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError as error:
        raise ValueError(f"there is no device {device!r}; give cpu, cuda or cuda:1") from error
    if target.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"torch finds no GPU on this machine, so the model cannot be moved to {device!r}; give cpu")
    if name.startswith(RANDOM):
        return untrained.load(name.removeprefix(RANDOM), dtype=dtype, device=target, layers=layers)
    if layers is not None:
        raise ValueError(f"only a {RANDOM}… model can be shortened to {layers} layers; {name!r} has trained weights")
    model, processor = _load_offline(name) if name in OFFLINE else _load_checkpoint(name, dtype)
    return model.to(target), processor


def load_guide(name: str, model: Any, processor: Any) -> Guide:
    """Load the text guide of a model.

    Args:
        name: The name that was given to `load_model`.
        model: The model that it returned.
        processor: The processor that it returned.
    """
    if name.startswith(RANDOM):
        return untrained.build_guide(model, processor)
    return guide_for(model, processor)


def _load_offline(name: str) -> tuple[Any, Any]:
    from eadp import pocket

    try:
        return pocket.load(name)
    except (FileNotFoundError, ImportError) as error:
        raise ValueError(f"the model {name!r} cannot be loaded: {error}") from error


def _load_checkpoint(name: str, dtype: Any) -> tuple[Any, Any]:
    from transformers import AutoModelForImageTextToText, AutoProcessor

    import eadp.models.efficientnet_lite  # noqa: F401 (transformers then knows this vision tower)

    try:
        model = AutoModelForImageTextToText.from_pretrained(
            name, dtype=dtype, use_safetensors=True, trust_remote_code=False
        )
        return model.eval(), AutoProcessor.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError) as error:
        kind = "folder" if Path(name).exists() else "name"
        raise ValueError(
            f"no model can be read from the {kind} {name!r}: give {', '.join(OFFLINE)}, the folder of a checkpoint, "
            f"its name on the hub, or {RANDOM}llava-1.5-7b and the like ({error})"
        ) from error
