"""What one request asks for: which method keeps how many of its images' tokens, and what the question is.

The server has settings for all (`--hf-overrides '{"eadp": {…}}'`), a request may have its own
(`mm_processor_kwargs={"eadp": {…}}`). Both are read in the process that takes requests, where a mistake is the client's
and gets its sentence; the workers receive what was found good.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from eadp.methods import NAMES, Method, make
from eadp.methods.base import REGISTRY
from eadp.serve.tower import Tower

KEY = "eadp"
"""The name of our settings, in a server's overrides and in a request's `mm_processor_kwargs`."""
EVERYTHING = "all"
"""keep: every token stays, nothing is computed. The share 1.0 says the same, but some clients write that as 1."""
COUNT_FIRST = "the engine must know how many tokens stay before it sees the image"


@dataclass(frozen=True)
class Request:
    """method: None where every token stays. question: "" where the method reads none."""

    method: Method | None
    question: str = ""

    @property
    def reads(self) -> bool:
        return self.method is not None and "text" in self.method.needs

    @property
    def merges_before_the_projector(self) -> bool:
        return self.method is not None and "tower_rows" in self.method.needs

    def count(self, total: int) -> int:
        """How many of an image's `total` tokens stay; all of them where there are no more than asked for."""
        if self.method is None or (isinstance(self.method.keep, int) and self.method.keep >= total):
            return total
        return self.method.count(total)

    def to_json(self) -> str:
        """Always the same text for the same request: it becomes part of the hash of its images."""
        if self.method is None:
            return "{}"
        settings = {each.name: getattr(self.method, each.name) for each in fields(self.method) if each.init}
        return json.dumps({"method": self.method.name, "question": self.question, **settings}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Request:
        settings = json.loads(text)
        if not settings:
            return cls(None)
        question = settings.pop("question")
        return cls(make(settings.pop("method"), **settings), question)

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
    positions: what the family's kept tokens have: "keep" their own, or "renumber".
    tower:     the vision tower, where its rows and its attention can be seen.
    """

    settings: Mapping[str, Any]
    positions: str
    tower: Tower | None = None
    guide: str | None = None
    cache_mib: int = 256

    @classmethod
    def of(cls, config: Any, positions: str, shows_attention: bool = True) -> ServerSettings:
        """From a model's configuration, after the overrides. shows_attention: every rank sees every image."""
        given = getattr(config, KEY, None)
        if not isinstance(given, Mapping):
            raise ValueError(
                f"--hf-overrides must say how to prune beside the architecture: "
                f'{{"{KEY}": {{"method": "eadp", "keep": 64}}}}, got {given!r}'
            )
        settings = dict(given)
        server = {name: settings.pop(name) for name in ("guide", "cache_mib") if name in settings}
        if isinstance(room := server.get("cache_mib", 0), bool) or not isinstance(room, int) or room < 0:
            raise ValueError(f"cache_mib must be a whole number of MiB, 0 for no cache, got {room!r}")
        found = cls({"method": "eadp", **settings}, positions, Tower.of(config) if shows_attention else None, **server)
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
        if only := sorted({"guide", "cache_mib"} & set(own)):
            raise ValueError(f"{', '.join(only)} can be set only for the whole server, not for a request")
        name = own.get("method", self.settings["method"])
        same = name == self.settings["method"]
        inherited = self.settings if same else {"keep": self.settings.get("keep")}
        chosen: dict[str, Any] = {**inherited, **own, "method": name}
        question = chosen.pop("question", "")
        if not isinstance(question, str):
            raise ValueError(f"question must be a text, got {question!r}")
        keep = chosen.get("keep")
        if keep == EVERYTHING or (isinstance(keep, float) and keep == 1):
            return Request(None)
        return Request(self._method(chosen), question.strip())

    def _method(self, chosen: dict[str, Any]) -> Method:
        name = chosen.pop("method")
        if not isinstance(name, str) or name not in REGISTRY:
            raise ValueError(f"unknown method {name!r}; known here: {', '.join(self.servable)}")
        if name not in self.servable:
            raise ValueError(f"{name} cannot be served with this model; these can: {', '.join(self.servable)}")
        known = {each.name for each in fields(REGISTRY[name]) if each.init}
        if unknown := sorted(set(chosen) - known):
            raise ValueError(f"{name} has no setting {', '.join(unknown)}; it has {', '.join(sorted(known))}")
        if chosen.get("coverage") is not None:
            raise ValueError(f"coverage cannot be served: {COUNT_FIRST}; give keep")
        if "exact" in known:
            # Where a release keeps more or fewer tokens than asked for, a server has to keep to the count.
            chosen = {"exact": True, **chosen}
        try:
            method = make(name, **chosen)
        except TypeError as error:
            raise ValueError(str(error)) from error
        if method.keep is None:
            raise ValueError(f"{name} needs keep: a count such as 64, or a share such as 0.25")
        if not getattr(method, "exact", True):
            raise ValueError(f"exact=false cannot be served: {COUNT_FIRST}")
        if (positions := chosen.get("positions", self.positions)) != self.positions:
            raise ValueError(f'positions="{positions}" cannot be served with this model, only "{self.positions}"')
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
        return [name for name in NAMES if REGISTRY[name].stage == "before" and REGISTRY[name].needs <= has]

    def watched(self, method: Method | None) -> tuple[int, ...]:
        """The layers of the vision tower whose attention the method goes by."""
        if method is None or self.tower is None or "vision_attention" not in method.needs:
            return ()
        return method.vision_layers(self.tower.depth, self.tower.family)
