"""Put finished results into the package, as the parts that its models load: `python -m training.things.export`."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from eadp.pocket.names import SMOL, THINGS
from eadp.pocket.things import parts
from training.things import results
from training.things.recipe import MODELS
from training.things.whitening import fold

SHARED_MODULES = ("tower", "clip")
"""What the models need of the vision stage. Its heads and temperatures serve the training alone."""

OWN_MODULES = {SMOL: ("lora", "projector"), THINGS: ("language", "projector")}
"""What each model needs of its last stage."""


def export(model: str, source: Path = results.FOLDER, package: Path = parts.FOLDER) -> list[Path]:
    """Write the parts of a model, in half precision, and the tokenizer of its text encoder.

    Args:
        model: The model, one of `MODELS`.
        source: Folder with the results.
        package: Folder of the parts.

    Returns:
        The files of the parts.

    Raises:
        FileNotFoundError: If a stage has no result yet.
    """
    package.mkdir(parents=True, exist_ok=True)
    shutil.copytree(source / "tokenizer", package / "tokenizer", dirs_exist_ok=True)
    chosen = {parts.VISION: (parts.VISION, SHARED_MODULES), model: (f"{model}-tune", OWN_MODULES[model])}
    written = []
    for part, (stage, modules) in chosen.items():
        file = source / f"{stage}.safetensors"
        if not file.exists():
            raise FileNotFoundError(f"the {stage} stage has no result in {source}: train it first")
        written.append(package / f"{part}.safetensors")
        save_file(_collect(load_file(file), modules), written[-1])
    return written


def _collect(weights: dict[str, Tensor], modules: tuple[str, ...]) -> dict[str, Tensor]:
    """Return the weights of some modules in half precision. That of a projector which whitens is folded."""
    chosen: dict[str, Tensor] = {}
    for module in modules:
        prefix = f"{module}."
        own = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
        own = fold(own) if module == "projector" else own
        chosen |= {f"{prefix}{name}": value.half() for name, value in own.items()}
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.things.export", description=__doc__)
    parser.add_argument("--model", choices=MODELS, default=SMOL, help="the model whose parts are written")
    for file in export(parser.parse_args().model):
        print(f"{file}: {file.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
