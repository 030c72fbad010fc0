"""What a harness's model is: a checkpoint under a method, and what it is shown and asked."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from eadp.evaluate.media import MEAN, SQUARES, check_colour
from eadp.evaluate.wording import QUESTIONS
from eadp.method_spec import PRESET, MethodSpec, build_method, parse_method
from eadp.methods import NoPruning

NAMED = ("resolution", "square", "pad_colour", "question", "sign")
"""What the name of the settings tells besides the method and its options, where it is not as usual."""


@dataclass(frozen=True)
class HarnessSettings:
    """What is run.

    pretrained:  `pocket`, the folder of a checkpoint, or its name on the hub.
    method:      a method's name; `none` for all tokens.
    options:     keep, coverage, preset, further settings of the method, and where `attach` puts its tokens (PLACING).
    resolution:  side in pixels of the square that every image becomes; Qwen, and LLaVA-NeXT, where it is one of the
                 sizes that the model cuts into crops. None: each in its own size.
    square:      how it becomes one: "stretch", or "pad" the shorter side, before the resizing if there is any; "crops":
                 LLaVA-NeXT is left that one size, as released with EADP and CDPruner: the whole image is stretched, its
                 crops are filled up with black, and no token of theirs is cropped away.
    pad_colour:  "mean" of the image processor, as LLaVA pads, or a colour: black, #7f7f7f.
    question:    what guides pruning: "harness": all that is asked; "released": without the line that asks for a
                 single word or phrase, as in EADP's release. The model reads that line either way.
    frames:      how many frames are taken of a clip, evenly.
    llava_video: the checkpoint is LLaVA-Video in LLaVA-OneVision's classes.
    guide, sign: the checkpoint of the text encoder, and its sign, where they are not the family's.
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
    def of(cls, **arguments: Any) -> HarnessSettings:
        """From arguments in a row, as they stand on a command line: whatever is not a field is an option, and
        method=eadp:published is the method with the option preset=published."""
        own = {each.name for each in fields(cls)} - {"options"}
        given = {name: _value(value) for name, value in arguments.items() if name not in own}
        method, options = parse_method(arguments.get("method", cls.method), given)
        others = {name: value for name, value in arguments.items() if name in own}
        return cls(**{**others, "method": method}, options=options)

    def __post_init__(self) -> None:
        if self.frames < 1:
            raise ValueError(f"frames must be at least 1, got {self.frames}")
        for name, value, known in (("square", self.square, SQUARES), ("question", self.question, QUESTIONS)):
            if value not in known:
                raise ValueError(f"{name} is one of {', '.join(known)}, got {value!r}")
        if self.pad_colour != MEAN:
            check_colour(self.pad_colour)
            if self.square != "pad":
                raise ValueError(f"pad_colour={self.pad_colour} goes with square=pad: {self.square} fills nothing up")
        if self.spec is not None:
            build_method(self.spec)

    @property
    def spec(self) -> MethodSpec | None:
        """The method with its budget and options; None for all tokens."""
        if self.method == NoPruning.name:
            if self.options:
                raise ValueError(
                    f"method={self.method} keeps all tokens: there is nothing to set, got {', '.join(self.options)}"
                )
            return None
        wanted = dict(self.options)
        return MethodSpec(self.method, wanted.pop("keep", None), wanted)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "options": dict(self.options)}

    @property
    def name(self) -> str:
        """For a folder of results: the checkpoint, the method with its preset, and whatever else is not as usual."""
        base = Path(self.pretrained).name
        method = NoPruning.name if self.spec is None else self.spec.name
        usual = {each.name: each.default for each in fields(self)}
        given = {name: value for name, value in self.options.items() if name != PRESET}
        given |= {name: getattr(self, name) for name in NAMED if getattr(self, name) != usual[name]}
        return re.sub(r"[^\w.-]+", "-", "-".join([base, method, *(f"{n}{v}" for n, v in given.items())])).strip("-")


def _value(value: Any) -> Any:
    """[8,16,24] → the list; the rest as it is."""
    return json.loads(value) if isinstance(value, str) and value.startswith("[") else value
