"""The results of finished stages, a few megabytes each: `python -m training.things.results --out FOLDER` stores them.

A result has the weights in half precision, without the state of the optimizer, and the learning curve beside it.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from eadp.pocket.model import make_identity
from eadp.pocket.things.model import TOWER_LAYERS

FOLDER = Path(__file__).parent / "results"
UNTRAINED = f"tower.encoder.layers.{TOWER_LAYERS - 1}."
"""The last layer of the tower, which stays the identity and is not stored."""

AUXILIARY = "pointing"
"""A module that serves the training alone. Every stage learns it anew within a few steps, so it is not stored."""


def store(out: Path, folder: Path = FOLDER, mix: float = 1.0) -> list[Path]:
    """Store the results of all stages that have a checkpoint in `out`, with their curves and the tokenizer.

    Args:
        out: The folder of the checkpoints.
        folder: The folder of the results.
        mix: The share of the new weights in the result of the vision stage; the rest is the old result. A training that
            started from that may be mixed with it: the mean of the weights is better than either
            (Wortsman et al., "Robust fine-tuning of zero-shot models", CVPR 2022).

    Returns:
        The files of the weights.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stored = []
    for checkpoint in sorted(out.glob("*.safetensors")):
        with safe_open(checkpoint, "pt") as saved:
            names = [name for name in saved.keys() if not name.startswith(("optimizer.", UNTRAINED, AUXILIARY))]  # noqa: SIM118
            tensors = {name: _shorten(name, saved.get_tensor(name)).contiguous() for name in names}
            metadata = saved.metadata()
        stored.append(folder / checkpoint.name)
        if checkpoint.stem == "vision" and mix < 1:
            old = load_file(stored[-1])
            tensors = {name: torch.lerp(old[name].float(), new.float(), mix).half() for name, new in tensors.items()}
        save_file(tensors, stored[-1], metadata)
        curve = checkpoint.with_suffix(".curve.jsonl")
        if curve.exists():
            shutil.copy(curve, folder / curve.name)
    if (out / "tokenizer" / "tokenizer.json").exists():
        shutil.copytree(out / "tokenizer", folder / "tokenizer", dirs_exist_ok=True)
    return stored


def _shorten(name: str, weights: Tensor) -> Tensor:
    """Return weights in half precision, but those of a projector as they are: it subtracts large values."""
    return weights if name.startswith("projector.") else weights.half()


def load(stage: str, modules: dict[str, nn.Module], folder: Path = FOLDER) -> None:
    """Load the result of a stage into its modules. Layers of the tower that the result lacks are made the identity.

    Raises:
        FileNotFoundError: If there is no such result.
        ValueError: If it does not fit the modules.
    """
    file = folder / f"{stage}.safetensors"
    if not file.exists():
        raise FileNotFoundError(f"the {stage} stage has no result in {folder}: train it first")
    tensors = load_file(file)
    for name, module in modules.items():
        if name == AUXILIARY:
            continue
        own = {key.removeprefix(f"{name}."): value for key, value in tensors.items() if key.startswith(f"{name}.")}
        if name == "tower":
            own = _add_layers(module, own)
        missing, unexpected = module.load_state_dict(own, strict=False)
        if missing or unexpected:
            raise ValueError(f"{file} does not fit the {name}: it lacks {missing} and has {unexpected} in excess")


def _add_layers(tower: nn.Module, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a tower with those of the layers that they lack, which are made the identity."""
    for number, layer in enumerate(cast(Any, tower).encoder.layers):
        prefix = f"encoder.layers.{number}."
        if not any(key.startswith(prefix) for key in weights):
            make_identity(layer)
            weights |= {f"{prefix}{key}": value for key, value in layer.state_dict().items()}
    return weights


def load_tokenizer(folder: Path = FOLDER) -> PreTrainedTokenizerFast | None:
    """Load the tokenizer that the stored text encoder was trained with; None if there is none."""
    stored = folder / "tokenizer"
    return PreTrainedTokenizerFast.from_pretrained(stored) if stored.exists() else None


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.things.results", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/things"), help="folder with checkpoints and curves")
    parser.add_argument(
        "--mix",
        type=float,
        default=1.0,
        help="share of the new weights in the vision stage; the rest is the old result",
    )
    options = parser.parse_args()
    for file in store(options.out, mix=options.mix):
        print(f"{file}: {file.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
