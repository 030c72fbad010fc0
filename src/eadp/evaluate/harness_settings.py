"""The settings of the model that a harness evaluates: checkpoint, method, and preprocessing."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from eadp.evaluate.media import MEAN, SQUARES, parse_colour
from eadp.evaluate.wording import GUIDING_QUESTIONS
from eadp.method_spec import PRESET, MethodSpec, build_method, parse_method
from eadp.methods import NoPruning

FIELDS_IN_NAME = ("resolution", "square", "pad_colour", "question", "sign")
"""The fields that `HarnessSettings.name` contains if they differ from their defaults."""


@dataclass(frozen=True)
class HarnessSettings:
    """The settings of the model that a harness evaluates.

    Attributes:
        pretrained: `pocket`, the folder of a checkpoint, or its name on the hub.
        method: The name of a method; `none` keeps all tokens.
        options: The budget (keep), the preset, other settings of the method, and options of `attach`
            (`ATTACH_OPTIONS`).
        resolution: The side in pixels of the square to which every image is resized. It works for Qwen, and for
            LLaVA-NeXT if it is one of the sizes that the model cuts into crops. None keeps the size of each image.
        square: How an image becomes a square. "stretch" stretches it. "pad" pads its shorter side before any resizing.
            "crops" leaves LLaVA-NeXT a single size, as in the releases of EADP and CDPruner: the full image is
            stretched to it, its crops are padded with black, and none of their tokens is removed.
        pad_colour: "mean" for the mean colour of the image processor, as LLaVA pads, or a colour such as "black" or
            "#7f7f7f".
        question: What guides pruning. "harness" is the full question. "released" removes the request for a single
            word or phrase, as EADP's release does. The model reads the full prompt either way.
        frames: The number of frames per video, evenly spaced.
        llava_video: Whether the checkpoint is LLaVA-Video in the classes of LLaVA-OneVision.
        guide: The checkpoint of the text encoder; None for that of the family.
        sign: The sign of the text encoder's similarities; None for that of the family.
        dtype: The dtype of the weights; "auto" for that of the checkpoint.
    """

    pretrained: str
    method: str = "eadp"
    options: Mapping[str, Any] = field(default_factory=dict)
    resolution: int | None = None
    square: str = "stretch"
    pad_colour: str = MEAN
    question: str = "harness"
    frames: int = 32
    llava_video: bool = False
    guide: str | None = None
    sign: float | None = None
    dtype: str = "auto"

    @classmethod
    def from_arguments(cls, **arguments: Any) -> HarnessSettings:
        """Build settings from the arguments of a command line.

        Args:
            **arguments: Fields of this class; all others become `options`. A method may have its preset in its name
                ("eadp:published"), and lists may be written as JSON.

        Raises:
            ValueError: If a method, an option or a value is unknown.
        """
        field_names = {each.name for each in fields(cls)} - {"options"}
        other = {name: _parse_list(value) for name, value in arguments.items() if name not in field_names}
        method, options = parse_method(arguments.get("method", cls.method), other)
        own = {name: value for name, value in arguments.items() if name in field_names}
        return cls(**{**own, "method": method}, options=options)

    def __post_init__(self) -> None:
        if self.frames < 1:
            raise ValueError(f"frames must be at least 1, got {self.frames}")
        for name, value, known in (("square", self.square, SQUARES), ("question", self.question, GUIDING_QUESTIONS)):
            if value not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")
        if self.pad_colour != MEAN:
            parse_colour(self.pad_colour)
            if self.square != "pad":
                raise ValueError(f"pad_colour={self.pad_colour} needs square=pad: {self.square} does not pad")
        if self.spec is not None:
            build_method(self.spec)

    @property
    def spec(self) -> MethodSpec | None:
        """The method with its budget and options; None for all tokens."""
        if self.method == NoPruning.name:
            if self.options:
                raise ValueError(
                    f"method={self.method} keeps all tokens and has no settings: leave out {', '.join(self.options)}"
                )
            return None
        options = dict(self.options)
        return MethodSpec(self.method, options.pop("keep", None), options)

    def as_json(self) -> dict[str, Any]:
        """Return the settings as JSON values."""
        return {**asdict(self), "options": dict(self.options)}

    @property
    def name(self) -> str:
        """A name for a folder of results: the checkpoint, the method with its preset, and what is not a default."""
        checkpoint = Path(self.pretrained).name
        method = NoPruning.name if self.spec is None else self.spec.name
        defaults = {each.name: each.default for each in fields(self)}
        changed = {name: value for name, value in self.options.items() if name != PRESET}
        changed |= {name: getattr(self, name) for name in FIELDS_IN_NAME if getattr(self, name) != defaults[name]}
        words = [checkpoint, method, *(f"{name}{value}" for name, value in changed.items())]
        return re.sub(r"[^\w.-]+", "-", "-".join(words)).strip("-")


def _parse_list(value: Any) -> Any:
    """Parse "[8,16,24]" as a list, and return other values unchanged."""
    return json.loads(value) if isinstance(value, str) and value.startswith("[") else value
