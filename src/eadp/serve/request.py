"""What one request asks for: which method keeps how many of its images' tokens, and what the question is.

The server has settings for all (`--hf-overrides '{"eadp": {…}}'`), a request may have its own
(`mm_processor_kwargs={"eadp": {…}}`). Both are read in the process that takes requests, where a mistake is the client's
and gets its sentence; the workers receive what was found good.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eadp.methods import BeforeMethod, NoPruning, get_method_class, list_methods
from eadp.methods.base import Newlines, Positions
from eadp.serve.tower import Tower

KEY = "eadp"
"""The name of our settings, in a server's overrides and in a request's `mm_processor_kwargs`."""
SERVER_ONLY = ("guide", "cache_mib", "llava_video")
"""Settings of the whole server, which a request cannot change."""
COUNT_FIRST = "the engine must know how many tokens stay before it sees the image"


@dataclass(frozen=True)
class Request:
    """What one request asks for.

    Attributes:
        method: The method; `NoPruning` where every token stays and nothing is computed.
        question: "" where the method reads none.
        positions: What kept tokens have for positions.
        newlines: Which newline tokens stay.
    """

    method: BeforeMethod
    question: str = ""
    positions: Positions = "renumber"
    newlines: Newlines = "none"

    @property
    def prunes(self) -> bool:
        return not isinstance(self.method, NoPruning)

    @property
    def reads(self) -> bool:
        return "text" in self.method.needs

    @property
    def merges_before_the_projector(self) -> bool:
        return "tower_rows" in self.method.needs

    def keeps_all(self, patches: int) -> bool:
        """Whether an image of so many patches stays as it is: it has no more than are asked for."""
        if not self.prunes:
            return True
        return isinstance(self.method.keep, int) and self.method.keep >= patches

    def sent(self, patches: int, newlines: int = 0, has_layout: bool = True) -> int:
        """Return how many tokens of an image or clip the engine gets. The arguments are those of `count_sent`."""
        if self.keeps_all(patches):
            return patches + newlines
        if self.newlines == "chosen":
            return self.method.count_sent(patches, newlines, has_layout)
        return self.method.count_sent(patches) + (newlines if self.newlines == "all" else 0)

    def to_json(self) -> str:
        """Always the same text for the same request: it becomes part of the hash of its images."""
        placing = {"positions": self.positions, "newlines": self.newlines}
        return json.dumps({"method": self.method.to_dict(), "question": self.question, **placing}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Request:
        data = json.loads(text)
        return cls(**{**data, "method": BeforeMethod.from_dict(data["method"])})

    def to_tensor(self) -> Tensor:
        """The JSON's bytes: tensors are what travels to the workers."""
        return torch.frombuffer(bytearray(self.to_json().encode()), dtype=torch.uint8)

    @classmethod
    def from_tensor(cls, data: Tensor) -> Request:
        return cls.from_json(bytes(data.cpu().tolist()).decode())


@dataclass(frozen=True)
class ServerSettings:
    """The server's own, and what it lets requests ask for.

    settings:  of the method that prunes where a request says nothing: method, keep, …
    guide:     checkpoint of the text encoder; None: the one that the vision tower came from; "none": load none, and
               serve only methods that read no question.
    cache_mib: room for unpruned features, so that another question about the same image spares the vision tower.
    llava_video: the checkpoint is LLaVA-Video in LLaVA-OneVision's classes.
    positions: what the family's kept tokens can have: "keep" their own, "renumber".
    family:    the model's `model_type`.
    tower:     the vision tower, where its rows and its attention can be seen.
    """

    settings: Mapping[str, Any]
    positions: tuple[Positions, ...]
    family: str = "llava"
    tower: Tower | None = None
    guide: str | None = None
    cache_mib: int = 256
    llava_video: bool = False

    @classmethod
    def of(cls, config: Any, positions: tuple[Positions, ...], shows_attention: bool = True) -> ServerSettings:
        """From a model's configuration, after the overrides. shows_attention: every rank sees every image."""
        given = getattr(config, KEY, None)
        if not isinstance(given, Mapping):
            raise ValueError(
                f"--hf-overrides must say how to prune beside the architecture: "
                f'{{"{KEY}": {{"method": "eadp", "keep": 64}}}}, got {given!r}'
            )
        settings = dict(given)
        server = {name: settings.pop(name) for name in SERVER_ONLY if name in settings}
        if isinstance(room := server.get("cache_mib", 0), bool) or not isinstance(room, int) or room < 0:
            raise ValueError(f"cache_mib must be a whole number of MiB, 0 for no cache, got {room!r}")
        tower, family = Tower.of(config) if shows_attention else None, getattr(config, "model_type", cls.family)
        if not isinstance(video := server.get("llava_video", False), bool) or (video and family != "llava_onevision"):
            raise ValueError(
                f"llava_video must be true for a LLaVA-Video checkpoint, which is a llava_onevision, and false for any "
                f"other; got {video!r} for a {family}"
            )
        found = cls({"method": "eadp", **settings}, positions, family, tower, **server)
        found.request(None)  # so that a mistake is told at the start, not to the first client
        return found

    @property
    def reads(self) -> bool:
        """Whether there is a guide, so that methods may read the question."""
        return self.guide != "none"

    def request(self, own: Mapping[str, Any] | None) -> Request:
        """The settings of a request over the server's.

        Another method than the server's takes only the budget from it: other settings were not meant for it.
        """
        own = {} if own is None else own
        if not isinstance(own, Mapping) or not all(isinstance(name, str) for name in own):
            raise ValueError(f'mm_processor_kwargs["{KEY}"] must be an object such as {{"keep": 32}}, got {own!r}')
        if only := sorted(set(SERVER_ONLY) & set(own)):
            raise ValueError(f"{', '.join(only)} can be set only for the whole server, not for a request")
        name = own.get("method", self.settings["method"])
        same = name == self.settings["method"]
        inherited: Mapping[str, Any] = self.settings
        if not same:
            inherited = {} if name == NoPruning.name else {"keep": self.settings.get("keep")}
        chosen: dict[str, Any] = {**inherited, **own, "method": name}
        question = chosen.pop("question", "")
        if not isinstance(question, str):
            raise ValueError(f"question must be a text, got {question!r}")
        keep = chosen.get("keep")
        if isinstance(keep, float) and keep == 1:
            return Request(NoPruning())
        placing = {what: chosen.pop(what, None) for what in ("positions", "newlines")}
        method = self._method(chosen)
        return Request(method, question.strip(), *self._placing(method, **placing))

    def _placing(self, method: BeforeMethod, positions: Any, newlines: Any) -> tuple[Positions, Newlines]:
        """What the request says, or the method's release does, of what this model can be served with."""
        if positions is None:
            released = method.positions_for(self.family)
            positions = released if released in self.positions else self.positions[0]
        if positions not in self.positions:
            known = " or ".join(f'"{each}"' for each in self.positions)
            raise ValueError(f'positions="{positions}" cannot be served with this model, only {known}')
        newlines = method.newlines if newlines is None else newlines
        if newlines not in ("none", "all", method.newlines):
            raise ValueError(f'newlines="{newlines}" cannot be served: {COUNT_FIRST}; "none" and "all" can')
        return positions, newlines

    def _method(self, chosen: dict[str, Any]) -> BeforeMethod:
        name = chosen["method"]
        if not isinstance(name, str) or name not in list_methods():
            raise ValueError(f"unknown method {name!r}; known here: {', '.join(self.servable)}")
        if name not in self.servable:
            raise ValueError(f"{name} cannot be served with this model; these can: {', '.join(self.servable)}")
        try:
            method = BeforeMethod.from_dict(chosen, family=self.family)
        except TypeError as error:
            raise ValueError(str(error)) from error
        if method.may_keep_fewer:
            raise ValueError(f"coverage cannot be served: {COUNT_FIRST}; give keep")
        if not chosen.get("exact", True):
            raise ValueError(f"exact=false cannot be served: {COUNT_FIRST}")
        if method.keep is None and method.takes_budget:
            raise ValueError(f"{name} needs keep: a count such as 64, or a share such as 0.25")
        # Where a release or a preset keeps more or fewer tokens than asked for, a server has to keep to the count.
        method = method.with_exact_count()
        if "text" in method.needs and not self.reads:
            raise ValueError(f'{name} reads the question, but this server was started with "guide": "none"')
        if self.tower is not None and (unread := [each for each in self.watched(method) if each >= self.tower.read]):
            raise ValueError(
                f"{name} goes by layer {unread[0]} of the vision tower, counted from 0, but this model reads what its "
                f"first {self.tower.read} layers give and runs no others: choose a lower one"
            )
        return method

    @property
    def servable(self) -> list[str]:
        """The methods that need no more than features, the question, and the rows and the attention of a tower that
        shows them."""
        has: set[str] = {"text"} if self.tower is None else {"text", "vision_attention", "tower_rows"}
        methods = {name: get_method_class(name) for name in list_methods()}
        return [name for name, each in methods.items() if issubclass(each, BeforeMethod) and each.needs <= has]

    def watched(self, method: BeforeMethod) -> tuple[int, ...]:
        """The layers of the vision tower whose attention the method goes by."""
        if self.tower is None or "vision_attention" not in method.needs:
            return ()
        return method.vision_layers(self.tower.depth, self.tower.family)
