"""The settings of a server and of one request: the method, the budget and the question.

The server has settings for all requests (`--hf-overrides '{"eadp": {…}}'`), and a request may override them
(`mm_processor_kwargs={"eadp": {…}}`). Both are validated in the process that receives requests, so that a client gets
an error message for a wrong setting. The workers receive only validated requests.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from eadp.methods import BeforeMethod, NoPruning, get_method_class, list_methods
from eadp.methods.base import Newlines, Positions
from eadp.methods.settings import Range, check_value
from eadp.serve.tower_spec import TowerSpec

SETTINGS_KEY = "eadp"
"""The name of the plugin's settings in `--hf-overrides` and in `mm_processor_kwargs`."""
SERVED_OUTPUTS = ("tower_rows", "tower_features", "padding")
"""What methods may need of the vision side besides its features and attention."""
SERVER_TYPES: dict[str, Any] = {
    "guide": str | None,
    "cache_mib": Annotated[int, Range(0, 1 << 20)],
    "llava_video": bool,
    "max_question_tokens": Annotated[int, Range(1, 1 << 20)],
    "processor_kwargs": bool,
}
"""Settings of the whole server, which a request cannot override, and the values that they may have."""
MAX_CHARACTERS_PER_TOKEN = 16
"""Longer texts than this many characters per allowed token are refused before their tokens are counted."""
MAX_MESSAGE_LENGTH = 1000
"""Longer error messages are cut: they name the wrong value, which may be of any size."""
COUNT_FIRST = "the engine must know how many tokens stay before it sees the image"
"""The reason in errors about settings whose token count depends on the image."""


@dataclass(frozen=True)
class Request:
    """A validated request.

    Attributes:
        method: The method with its settings. `NoPruning` keeps every token.
        question: The question, "" if the method does not read it.
        positions: The position mode of kept tokens.
        newlines: Which newline tokens are kept.
        is_profile: Whether it comes from vLLM's profiling run, not from a client: all tokens are kept, and a selection
            is made besides, so that its memory is reserved.
    """

    method: BeforeMethod
    question: str = ""
    positions: Positions = "renumber"
    newlines: Newlines = "none"
    is_profile: bool = False

    @property
    def prunes(self) -> bool:
        """Whether the request asks for pruning."""
        return not isinstance(self.method, NoPruning)

    @property
    def reads_question(self) -> bool:
        """Whether the method reads the question."""
        return "text" in self.method.needs or self.reads_word_embeddings

    @property
    def reads_word_embeddings(self) -> bool:
        """Whether the method reads the question as input embeddings of the language model."""
        return "word_embeddings" in self.method.needs

    @property
    def outputs(self) -> tuple[str, ...]:
        """Which of `SERVED_OUTPUTS` the method needs."""
        return tuple(each for each in SERVED_OUTPUTS if each in self.method.needs)

    def keeps_all(self, patches: int) -> bool:
        """Return whether an image or clip stays unpruned: nothing is pruned, or it has no more tokens than the budget.

        Args:
            patches: The number of its tokens, without newlines.
        """
        if not self.prunes:
            return True
        return isinstance(self.method.keep, int) and self.method.keep >= patches

    def count_sent(self, patches: int, newlines: int = 0, has_layout: bool = True) -> int:
        """Return how many tokens of an image or clip the engine gets.

        Args:
            patches: The number of unpruned tokens, without newlines.
            newlines: The number of newline tokens.
            has_layout: Whether it is an image, not the frames of a clip.
        """
        if self.keeps_all(patches):
            return patches + newlines
        if self.newlines == "chosen":
            return self.method.count_sent(patches, newlines, has_layout)
        return self.method.count_sent(patches) + (newlines if self.newlines == "all" else 0)

    def to_json(self) -> str:
        """Return the request as JSON. Equal requests give equal text, because it is part of the images' hashes."""
        others = {name: getattr(self, name) for name in ("question", "positions", "newlines", "is_profile")}
        return json.dumps({"method": self.method.to_dict(), **others}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Request:
        """Read a request that `to_json` wrote."""
        data = json.loads(text)
        return cls(**{**data, "method": BeforeMethod.from_dict(data["method"])})

    def to_tensor(self) -> Tensor:
        """Return the JSON as a uint8 tensor, because vLLM sends only tensors to its workers."""
        return torch.frombuffer(bytearray(self.to_json().encode()), dtype=torch.uint8)

    @classmethod
    def from_tensor(cls, data: Tensor) -> Request:
        """Read a request that `to_tensor` wrote."""
        return cls.from_json(bytes(data.cpu().tolist()).decode())


@dataclass(frozen=True)
class ServerSettings:
    """The settings of a server, which also validate the settings of its requests.

    Attributes:
        settings: The default method and its settings: method, keep, …
        positions: The position modes that the family supports: "renumber", "keep".
        family: The `model_type` of the model.
        tower: The vision tower, None if its attention and its output before the projector are not available.
        guide: The checkpoint of the text encoder. None: the one that the vision tower comes from. "none": load no
            encoder, and serve only methods that do not read the question.
        cache_mib: The size of the cache of unpruned features, in MiB. With it, another question about the same image
            skips the vision tower.
        llava_video: Whether the checkpoint is LLaVA-Video in LLaVA-OneVision's classes.
        max_question_tokens: The longest question, in tokens of the language model.
        processor_kwargs: Whether requests may set other `mm_processor_kwargs` than those of the plugin, if vLLM lets
            them set any.
    """

    settings: Mapping[str, Any]
    positions: tuple[Positions, ...]
    family: str = "llava"
    tower: TowerSpec | None = None
    guide: str | None = None
    cache_mib: int = 256
    llava_video: bool = False
    max_question_tokens: int = 4096
    processor_kwargs: bool = True

    @classmethod
    def from_config(
        cls, config: Any, positions: tuple[Positions, ...], attention_available: bool = True
    ) -> ServerSettings:
        """Read and validate the settings of a server.

        Args:
            config: The model's configuration, with `--hf-overrides` applied.
            positions: The position modes that the family supports.
            attention_available: Whether the attention of the vision tower can be recorded.

        Raises:
            ValueError: A setting is missing, unknown or out of range.
        """
        given = getattr(config, SETTINGS_KEY, None)
        if not isinstance(given, Mapping):
            raise ValueError(
                f"--hf-overrides must say how to prune, besides the architecture: "
                f'{{"{SETTINGS_KEY}": {{"method": "eadp", "keep": 64}}}}, got {given!r}'
            )
        settings = dict(given)
        server = {name: settings.pop(name) for name in SERVER_TYPES if name in settings}
        for name, value in server.items():
            check_value(name, value, SERVER_TYPES[name])
        tower = TowerSpec.from_config(config) if attention_available else None
        family = getattr(config, "model_type", cls.family)
        if server.get("llava_video") and family != "llava_onevision":
            raise ValueError(
                f"llava_video=true is for LLaVA-Video checkpoints, whose model_type is llava_onevision; this one has "
                f"{family}"
            )
        found = cls({"method": "eadp", **settings}, positions, family, tower, **server)
        found.build_request(None)  # Report wrong settings at the start, not to the first client.
        return found

    def check_processor_kwargs(self, names: Iterable[str]) -> None:
        """Raise ValueError if a request sets `mm_processor_kwargs` that it must not set.

        Args:
            names: Those of the request besides the settings of the plugin.
        """
        if not self.processor_kwargs and (others := sorted(map(str, names))):
            raise ValueError(
                f'mm_processor_kwargs may only hold "{SETTINGS_KEY}" on this server, not {", ".join(others)}'
            )

    def check_question(self, question: str, count_tokens: Callable[[str], int]) -> None:
        """Raise ValueError if a question is too long to be encoded in reasonable time.

        Args:
            question: The question.
            count_tokens: Counts the tokens of a text. It is not called for texts that are much too long.
        """
        limit = self.max_question_tokens
        # A token is at least one byte.
        is_short = len(question.encode()) <= limit
        if not is_short and (len(question) > MAX_CHARACTERS_PER_TOKEN * limit or count_tokens(question) > limit):
            raise ValueError(
                f"the question has more than {limit} tokens: send a shorter one in "
                f'mm_processor_kwargs["{SETTINGS_KEY}"]["question"], or start the server with a larger '
                "max_question_tokens"
            )

    @property
    def has_guide(self) -> bool:
        """Whether the server has a guide, so that methods can read the question."""
        return self.guide != "none"

    def build_request(self, own: Mapping[str, Any] | None) -> Request:
        """Combine the settings of a request with those of the server, and validate them.

        A request that names another method than the server's takes only `keep` from the server, because the other
        settings belong to the server's method.

        Args:
            own: The settings of the request. None or {}: those of the server.

        Returns:
            The validated request.

        Raises:
            ValueError: A setting is unknown, out of range, or cannot be served with this model.
        """
        try:
            return self._build_request({} if own is None else own)
        except (ValueError, TypeError, OverflowError) as error:
            message = str(error)
            if len(message) > MAX_MESSAGE_LENGTH:
                half = MAX_MESSAGE_LENGTH // 2 - 2
                message = f"{message[:half]} … {message[-half:]}"
            raise ValueError(message) from error

    def _build_request(self, own: Mapping[str, Any]) -> Request:
        if not isinstance(own, Mapping) or not all(isinstance(name, str) for name in own):
            raise ValueError(
                f'mm_processor_kwargs["{SETTINGS_KEY}"] must be an object such as {{"keep": 32}}, got {own!r}'
            )
        if only := sorted(set(SERVER_TYPES) & set(own)):
            raise ValueError(f"{', '.join(only)} can be set only for the whole server, not for a request")
        name = own.get("method", self.settings["method"])
        inherited: Mapping[str, Any] = self.settings
        if name != self.settings["method"]:
            inherited = {} if name == NoPruning.name else {"keep": self.settings.get("keep")}
        chosen: dict[str, Any] = {**inherited, **own, "method": name}
        question = chosen.pop("question", "")
        if not isinstance(question, str):
            raise ValueError(f"question must be a string, got {question!r}")
        try:
            question.encode()
        except UnicodeEncodeError as error:
            raise ValueError("question must be valid Unicode text, but it has a lone surrogate") from error
        placement = {name: chosen.pop(name, None) for name in ("positions", "newlines")}
        method = self._build_method(chosen)
        placed = self._resolve_placement(method, **placement)
        if isinstance(method.keep, float) and method.keep == 1:
            return Request(NoPruning())
        return Request(method, question.strip(), *placed)

    def _resolve_placement(self, method: BeforeMethod, positions: Any, newlines: Any) -> tuple[Positions, Newlines]:
        """Return the request's positions and newlines, by default those of the method's release if supported."""
        if positions is None:
            own = method.positions_for(self.family)
            positions = own if own in self.positions else self.positions[0]
        if positions not in self.positions:
            known = " or ".join(f'"{each}"' for each in self.positions)
            raise ValueError(f'positions="{positions}" cannot be served with this model, only {known}')
        # How many rows keep a token is not known before the image is seen.
        released = "all" if method.newlines == "kept rows" else method.newlines
        newlines = released if newlines is None else newlines
        if newlines not in ("none", "all", released):
            raise ValueError(f'newlines="{newlines}" cannot be served: {COUNT_FIRST}; "none" and "all" can')
        return positions, newlines

    def _build_method(self, chosen: dict[str, Any]) -> BeforeMethod:
        name = chosen["method"]
        if not isinstance(name, str) or name not in list_methods():
            raise ValueError(f"unknown method {name!r}; available: {', '.join(self.available_methods)}")
        if name not in self.available_methods:
            raise ValueError(f"{name} cannot be served with this model; these can: {', '.join(self.available_methods)}")
        try:
            method = BeforeMethod.from_dict(chosen, family=self.family)
        except TypeError as error:
            raise ValueError(str(error)) from error
        if method.may_keep_fewer:
            raise ValueError(f"coverage cannot be served: {COUNT_FIRST}; set keep instead")
        if not chosen.get("exact", True):
            raise ValueError(f"exact=false cannot be served: {COUNT_FIRST}")
        if method.keep is None and method.takes_budget:
            raise ValueError(f"{name} needs keep: a count such as 64, or a share such as 0.25")
        # Some releases and presets keep more or fewer tokens than requested; the engine needs the exact count.
        method = method.with_exact_count().for_family(self.family)
        if "text" in method.needs and not self.has_guide:
            raise ValueError(f'{name} reads the question, but this server was started with "guide": "none"')
        layers = self.attention_layers(method)
        if self.tower is not None and (not_run := [layer for layer in layers if layer >= self.tower.layers_run]):
            raise ValueError(
                f"{name} uses layer {not_run[0]} of the vision tower, counted from 0, but this model runs only its "
                f"first {self.tower.layers_run} layers: choose a lower layer"
            )
        return method

    @property
    def available_methods(self) -> list[str]:
        """The names of the methods that this server can run.

        They prune before the language model and need only features, the question and, if available, the attention and
        the output of the vision tower.
        """
        available: set[str] = {"text", "word_embeddings"}
        if self.tower is not None:
            available |= {"vision_attention", *SERVED_OUTPUTS}
        methods = {name: get_method_class(name) for name in list_methods()}
        return [name for name, each in methods.items() if issubclass(each, BeforeMethod) and each.needs <= available]

    def attention_layers(self, method: BeforeMethod) -> tuple[int, ...]:
        """Return the layers of the vision tower whose attention the method uses, counted from 0."""
        if self.tower is None or "vision_attention" not in method.needs:
            return ()
        return method.vision_layers(self.tower.depth, self.tower.family)
