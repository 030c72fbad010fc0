"""Prune a model by one call, and restore it at the end of the block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from threading import RLock
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

import eadp.runtime.requirements  # noqa: F401 (before anything of transformers)
from eadp.compat import forget_compiled_code
from eadp.core import Selection
from eadp.methods import Method
from eadp.methods.base import Newlines, Positions
from eadp.models import FamilyAdapter, ImageLayout, adapter_of
from eadp.runtime.attachment import attachment_of
from eadp.runtime.before import Pruning
from eadp.runtime.call import PrefillResult, ThreadResults
from eadp.runtime.choose import BudgetOver
from eadp.runtime.hooks import MARK, Hooks
from eadp.runtime.resolve import BUDGETS, resolve_settings
from eadp.runtime.settings import Question, Settings
from eadp.runtime.static_cache import FittedStaticCache

if TYPE_CHECKING:
    from eadp.models.guides.base import Guide

SHARED = ("guide", "question", "positions", "budget_over", "newlines")
"""The settings that do not belong to a method."""

_LOCK = RLock()
"""Held while hooks are added or removed."""

_using: ContextVar[Mapping[Pruned, Settings]] = ContextVar("eadp_using", default=MappingProxyType({}))
"""The settings of `Pruned.using` in this thread."""


def attach(
    model: nn.Module,
    processor: Any = None,
    *,
    method: str | Method | Sequence[str | Method] = "eadp",
    keep: int | float | None = None,
    coverage: float | None = None,
    preset: str | None = None,
    guide: Guide | str | None = None,
    question: Question | None = None,
    positions: Positions | None = None,
    budget_over: BudgetOver = "image",
    newlines: Newlines | None = None,
    unpad: bool = True,
    **settings: Any,
) -> Pruned:
    """Prune the visual tokens of a model until the returned object is detached.

        with eadp.attach(model, processor, keep=64) as pruned:
            out = model.generate(**processor(images=image, text=prompt, return_tensors="pt"))
            pruned.last[0]

    `generate` and `forward` of the model are used as before.

    Args:
        model: A transformers model of a known family (`eadp.models.FAMILIES`), or a wrapper around one (DDP,
            DataParallel, PEFT, `torch.compile`).
        processor: Reads the question from the prompt, and finds the text guide. It may be None if neither is needed:
            if the method reads no text, or if `guide` and `question` are given.
        method: The name of a method, or a method. Or two methods: one that prunes before the language model, and one
            that prunes inside it.
        keep: How many tokens of each image stay: a count (64) or a share (0.25). An image with no more tokens stays
            whole. It overrides the setting of a given method, as do `coverage` and `settings`.
        coverage: The coverage that the kept tokens must reach, for methods that have this setting.
        preset: A named set of the method's settings for this model: "paper" or "published" of EADP.
        guide: Brings text to the visual tokens; or the checkpoint (name or path) of the text encoder to use for it.
            A method that needs word embeddings uses it only if it compares in the language model's space.
        question: The question of the prompts, or a function that reads it from the ids of a prompt. Default: the text
            of the last user turn.
        positions: "keep": kept tokens keep their positions and coordinates. "renumber": positions have no gaps, inside
            the language model too. Default: what the model's configuration says (`eadp_positions`), or else what the
            method's release does.
        budget_over: "image": one budget per image or clip. "prompt": one budget for all images of a prompt. Methods
            that compare frames then take images of one size for the frames of a clip.
        newlines: Which newline tokens stay: "none", those of "kept rows", or "all". Default: as in the method's
            release. They are not counted in `keep`; `Selection.tokens_sent` counts them.
        unpad: False keeps the padding that LLaVA-NeXT crops away, in the model and in the processor, so that every crop
            has all its tokens, as in the releases of EADP and CDPruner.
        **settings: Further settings of the method.

    Returns:
        A context manager with the selections of the last prefill.

    Raises:
        ValueError: If the model or a setting is not supported.
        TypeError: If a setting is given where it cannot apply.
        RuntimeError: If the model is already being pruned.
    """
    arguments = {
        "method": method,
        "keep": keep,
        "coverage": coverage,
        "preset": preset,
        "guide": guide,
        "question": question,
        "positions": positions,
        "budget_over": budget_over,
        "newlines": newlines,
    }
    adapter = adapter_of(model)
    return Pruned(_without_wrappers(model, adapter.base), adapter, processor, unpad, arguments | settings)


def detach(model: nn.Module) -> None:
    """End the pruning of a model, whichever handle `attach` returned for it.

    Args:
        model: The model that was given to `attach`.

    Raises:
        RuntimeError: If the model is not being pruned.
    """
    pruned = vars(adapter_of(model).base).get(MARK)
    if pruned is None:
        raise RuntimeError("this model is not being pruned: there is nothing to detach")
    pruned.detach()


def _without_wrappers(model: nn.Module, base: nn.Module) -> nn.Module:
    """The transformers model around a base model, inside of DDP, PEFT and the like."""
    from transformers import PreTrainedModel

    models = (module for module in model.modules() if isinstance(module, PreTrainedModel))
    return next((module for module in models if any(part is base for part in module.modules())), base)


class Pruned:
    """A model that is being pruned. It is a context manager; `detach` ends the pruning too.

    Threads may call the model at the same time. `set` changes the settings for all of them, `using` and
    `with_question` for the thread that they are used in.

    Attributes:
        adapter: The adapter of the model.
    """

    def __init__(
        self, model: nn.Module, adapter: FamilyAdapter, processor: Any, unpad: bool, arguments: dict[str, Any]
    ) -> None:
        self.adapter = adapter
        self._model = model
        self._processor = processor
        self._unpad = unpad
        self._attachment = attachment_of(adapter.base)
        self._hooks = Hooks()
        self._pruning = self._make_pruning()
        self._results = ThreadResults()
        self._check_unpruned()
        self._settings = self._resolve(arguments)
        self._attach()

    def _attach(self) -> None:
        with _LOCK:
            self._check_unpruned()
            self._hooks, self._pruning, self._results = Hooks(), self._make_pruning(), ThreadResults()
            try:
                if not self._unpad:
                    self.adapter.keep_padding(self._hooks, self._processor)
                self._pruning.prepare(self._hooks, self._settings)
                self._pruning.prepare(self._hooks, self.settings)
                self._pruning.install(self._hooks)
                self._hooks.override(self.adapter.base, MARK, self)
            except BaseException:
                self._hooks.undo()
                raise
            forget_compiled_code()
            self._attachment.session = self._pruning.session

    def _make_pruning(self) -> Pruning:
        return Pruning(
            self._model, self.adapter, self._attachment, lambda: self.settings, self._question_of, self._keep_result
        )

    def _check_unpruned(self) -> None:
        if MARK in vars(self.adapter.base):
            raise RuntimeError("this model is already being pruned; detach it first")

    def _resolve(self, arguments: dict[str, Any]) -> Settings:
        return resolve_settings(self._model, self.adapter, self._processor, arguments)

    @property
    def attached(self) -> bool:
        """Whether the model is being pruned through this handle."""
        return self._pruning.is_active

    @property
    def settings(self) -> Settings:
        """The settings of a call that begins now in this thread."""
        return _using.get().get(self, self._settings)

    @property
    def methods(self) -> tuple[Method, ...]:
        """The methods, in the order in which they prune."""
        return self.settings.methods

    @property
    def method(self) -> Method:
        """The first of the methods."""
        return self.methods[0]

    @property
    def guide(self) -> Guide | None:
        """The text guide; None where the method reads no text."""
        return self.settings.guide

    @property
    def last(self) -> list[Selection]:
        """What the last prefill kept: one `Selection` per image or clip, in the order of the prompts.

        It is the last prefill of the calling thread, or of any thread if the calling one had none. It is empty until a
        prefill ran since the model was attached. On a GPU, a prefill does not wait to see whether its input was valid;
        asking for what it kept does.

        Raises:
            ValueError: If features or text of the last prefill were not finite, so that what it kept is meaningless.
        """
        selections = self._results.last.selections
        for selection in selections:
            selection.check()
        return selections

    @property
    def images(self) -> list[ImageLayout]:
        """Where the tokens of each image or clip in `last` are: grids, crops, newlines."""
        return self._results.last.images

    @property
    def columns(self) -> Tensor | None:
        """B×L, which columns of the last prefill's prompts stayed; None before the first prefill."""
        return self._results.last.columns()

    def set(self, **changes: Any) -> None:
        """Change settings, for the calls of all threads that begin from now on.

        Args:
            **changes: Arguments of `attach`, except `processor` and `unpad`. A new `method` starts from its own
                settings; without one, `keep`, `coverage` and other settings change the present method.

        Raises:
            ValueError: If a setting is not supported.
            TypeError: If a setting is given where it cannot apply.
        """
        with _LOCK:
            self._settings = self._changed(self._settings, changes)

    @contextmanager
    def using(self, **changes: Any) -> Iterator[Pruned]:
        """Change settings within the block, for calls of this thread only.

        A thread that is started in the block does not take part: use the block in the thread's own function.

        Args:
            **changes: As in `set`.
        """
        changed = self._changed(self.settings, changes)
        token = _using.set({**_using.get(), self: changed})
        try:
            yield self
        finally:
            _using.reset(token)

    def with_question(self, question: str | Sequence[str]) -> AbstractContextManager[Pruned]:
        """Set the question of the prompts within the block, whatever their text is, for calls of this thread only.

        Args:
            question: One question for all prompts, or one per prompt.
        """
        return self.using(question=question)

    def _changed(self, settings: Settings, changes: dict[str, Any]) -> Settings:
        if fixed := sorted({"processor", "unpad"} & {*changes}):
            raise TypeError(f"{', '.join(fixed)} cannot be changed while a model is attached; attach it again")
        if changes.get("method", ...) is None:
            raise TypeError("method=None is no method; leave it out to keep the present one")
        arguments = dict(settings.arguments)
        if "method" in changes:
            # What belonged to the former method.
            arguments = {name: value for name, value in arguments.items() if name in SHARED} | {"preset": None}
        if any(name in changes for name in BUDGETS):
            arguments |= dict.fromkeys(BUDGETS)
        changed = self._resolve(arguments | changes)
        with _LOCK:
            if self.attached:
                hooked = len(self._hooks)
                self._pruning.prepare(self._hooks, changed)
                if len(self._hooks) > hooked:
                    forget_compiled_code()
        return changed

    def static_cache(self, max_new_tokens: int) -> FittedStaticCache:
        """Make a static KV cache that is as large as the pruned prompt and its answer need it to be.

            out = model.generate(**inputs, past_key_values=pruned.static_cache(64), max_new_tokens=64)

        `cache_implementation="static"` makes one for the whole prompt, as if nothing were pruned.

        Args:
            max_new_tokens: How many tokens fit in after the prompt.
        """
        return FittedStaticCache(self.adapter.config, max_new_tokens)

    def detach(self) -> None:
        """End the pruning and restore the model. A second call does nothing.

        A call that another thread is in raises a RuntimeError when it would continue without hooks.
        """
        with _LOCK:
            if self.attached:
                self._attachment.session = None
                self._hooks.undo()
                forget_compiled_code()

    def __enter__(self) -> Pruned:
        if not self.attached:
            self._attach()
        return self

    def __exit__(self, *exception: object) -> None:
        self.detach()

    def _keep_result(self, result: PrefillResult) -> None:
        self._results.last = result

    def _question_of(self, question: Question | None, row: int, prompts: int, ids: Tensor | None) -> str:
        """The question of one prompt of the batch.

        Args:
            question: The setting.
            row: The prompt.
            prompts: The number of prompts in the batch.
            ids: L, those of the prompt, without padding and without an answer that it is trained on.
        """
        if isinstance(question, str):
            return question
        if isinstance(question, Sequence):
            if len(question) != prompts:
                raise ValueError(
                    f"give one question for all prompts, or one per prompt: got {len(question)} for {prompts} prompts"
                )
            return question[row]
        if ids is None:
            raise ValueError(
                "a prompt given as inputs_embeds has no text: set its question with pruned.with_question(…)"
            )
        if question is not None:
            return question(ids)
        if self._processor is None:
            raise ValueError(
                f"{self.method.name} needs the question: attach with processor= or question=, "
                "or use pruned.with_question(…)"
            )
        from eadp.models.question import question_of

        return question_of(ids, self._processor, self.adapter.config)
