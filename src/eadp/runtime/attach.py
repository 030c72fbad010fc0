"""Prune a model by one call, and restore it at the end of the block."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, get_args

from torch import Tensor, nn

import eadp.runtime.requirements  # noqa: F401 (before anything of transformers)
from eadp.core import Selection
from eadp.methods import BeforeMethod, InsideMethod, Method, NoPruning, get_method
from eadp.methods.base import Newlines, Positions
from eadp.models import FamilyAdapter, ImageLayout, adapter_of
from eadp.runtime.before import BeforeLanguageModel
from eadp.runtime.choose import BudgetOver, Chooser
from eadp.runtime.hooks import MARK, Hooks
from eadp.runtime.inside import InsideLanguageModel
from eadp.runtime.vision_capture import VisionCapture

if TYPE_CHECKING:
    from eadp.models.guides.base import Guide

Question = str | Callable[[Tensor], str]

GATHERED = {"text", "word_embeddings", "vision_attention", "tower_rows", "tower_features", "pixels", "padding"}
"""What a method that prunes before the language model may need."""


def attach(
    model: nn.Module,
    processor: Any = None,
    *,
    method: str | Method | Sequence[Method] = "eadp",
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
        model: A transformers model of a known family (`eadp.models.FAMILIES`).
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
        budget_over: "image": one budget per image or clip. "prompt": one budget for all images of a prompt.
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
    given = {name: value for name, value in {"keep": keep, "coverage": coverage}.items() if value is not None}
    adapter = adapter_of(model)
    before, inside = _resolve_methods(method, given | settings, preset, adapter.config.model_type)
    if budget_over not in get_args(BudgetOver):
        raise ValueError(f'budget_over must be "image" or "prompt", got {budget_over!r}')
    for name, value, known in (("positions", positions, Positions), ("newlines", newlines, Newlines)):
        if value is not None and value not in get_args(known):
            raise ValueError(f"{name} must be one of {', '.join(get_args(known))}, got {value!r}")
    if positions is None:
        positions = getattr(adapter.config, "eadp_positions", None)
    if before is not None and (more := sorted(before.needs - GATHERED)):
        raise ValueError(f"{before.name} needs {', '.join(more)}, which attach does not gather")
    if MARK in vars(adapter.base):
        raise RuntimeError("this model is already being pruned; detach it first")
    text = None if before is None else _resolve_guide(model, processor, guide, before)
    return Pruned(model, adapter, before, inside, text, processor, question, positions, budget_over, newlines, unpad)


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


def _resolve_methods(
    method: str | Method | Sequence[Method], settings: dict[str, Any], preset: str | None, family: str
) -> tuple[BeforeMethod | None, InsideMethod | None]:
    """Return the method that prunes before the language model, and the one that prunes inside it."""
    if isinstance(method, str | Method):
        method = _resolve_method(method, settings, preset, family)
        if isinstance(method, InsideMethod):
            return None, method
        if isinstance(method, BeforeMethod):
            return method.for_family(family), None
        raise TypeError(f"a method is a BeforeMethod or an InsideMethod, which {type(method).__name__} is not")
    if preset is not None:
        raise TypeError("a preset is for one method named by its name, not for a list of methods")
    if settings:
        raise TypeError(f"give {', '.join(settings)} to the methods of the list, not to attach")
    if len(method) != 2 or not isinstance(method[0], BeforeMethod) or not isinstance(method[1], InsideMethod):
        raise ValueError(
            "a list of methods is one that prunes before the language model and one that prunes inside it, "
            f"such as [EADP(keep=128), PyramidDrop()]; got {[each.name for each in method]}"
        )
    return method[0].for_family(family), method[1]


def _resolve_method(method: str | Method, settings: dict[str, Any], preset: str | None, family: str) -> Method:
    if isinstance(method, str):
        return get_method(method, preset=preset, family=family, **settings)
    if preset is not None:
        raise TypeError(f"a preset goes with a method's name: method={method.name!r}, preset={preset!r}")
    return method.with_settings(**settings)


def _resolve_guide(model: Any, processor: Any, guide: Guide | str | None, method: Method) -> Guide | None:
    """Return the guide of a method; None if the method reads no text."""
    from eadp.models.guides import EmbeddingGuide, guide_for

    by_words = "word_embeddings" in method.needs
    if not by_words and "text" not in method.needs:
        return None
    if guide is not None and not isinstance(guide, str) and (not by_words or guide.space == "language"):
        return guide
    if processor is None:
        kind = "a guide from the language model's embeddings" if by_words else "a guide"
        raise ValueError(f"{method.name} reads the question: give attach the processor, or {kind}")
    if by_words:
        return EmbeddingGuide(model.get_input_embeddings(), processor)
    return guide_for(model, processor, guide if isinstance(guide, str) else None)


class Pruned:
    """A model that is being pruned. It is a context manager; `detach` ends the pruning too.

    Attributes:
        adapter: The adapter of the model.
        methods: The methods, in the order in which they prune.
        method: The first of them.
        guide: The text guide; None where the method reads no text.
    """

    def __init__(
        self,
        model: nn.Module,
        adapter: FamilyAdapter,
        before: BeforeMethod | None,
        inside: InsideMethod | None,
        guide: Guide | None,
        processor: Any,
        question: Question | None,
        positions: Positions | None,
        budget_over: BudgetOver,
        newlines: Newlines | None,
        unpad: bool,
    ) -> None:
        self.adapter = adapter
        self.methods = tuple(method for method in (before, inside) if method is not None)
        self.method = self.methods[0]
        self.guide = guide
        self._processor = processor
        self._question = question
        self._question_override: Sequence[str] | str | None = None
        self._hooks = Hooks()
        if not unpad:
            adapter.keep_padding(self._hooks, processor)
        model_type = adapter.config.model_type
        newlines_before = None if before is None else newlines
        chooser = Chooser(before or NoPruning(), guide, adapter, budget_over, newlines_before)
        cutting = None
        if inside is not None:
            cutting = InsideLanguageModel(model, adapter, inside, chooser, positions, newlines)
        capture = VisionCapture(model, adapter, self._question_of, chooser.method)
        positions_before = positions or chooser.method.positions_for(model_type)
        self._pruning = BeforeLanguageModel(capture, chooser, positions_before, cutting)
        self._pruning.install(self._hooks)
        self._hooks.override(adapter.base, MARK, self)

    @property
    def last(self) -> list[Selection]:
        """What the last prefill kept: one `Selection` per image or clip, in the order of the prompts."""
        return self._pruning.selections

    @property
    def images(self) -> list[ImageLayout]:
        """Where the tokens of each image or clip in `last` are: grids, crops, newlines."""
        return [image.layout for image in self._pruning.images]

    @property
    def columns(self) -> Tensor | None:
        """B×L, which columns of the last prefill's prompts stayed; None before the first prefill."""
        return self._pruning.columns

    @contextmanager
    def with_question(self, question: str | Sequence[str]) -> Iterator[Pruned]:
        """Set the question of the prompts within the block, whatever their text is.

        Args:
            question: One question for all prompts, or one per prompt.
        """
        former, self._question_override = self._question_override, question
        try:
            yield self
        finally:
            self._question_override = former

    def detach(self) -> None:
        """End the pruning and restore the model. A second call does nothing."""
        self._hooks.undo()

    def __enter__(self) -> Pruned:
        return self

    def __exit__(self, *exception: object) -> None:
        self.detach()

    def _question_of(self, row: int, ids: Tensor | None) -> str:
        """The question of one prompt of the batch. ids: L, without padding."""
        question = self._question_override if self._question_override is not None else self._question
        if isinstance(question, str):
            return question
        if isinstance(question, Sequence):
            if row >= len(question):
                raise ValueError(f"{len(question)} questions were given, but the batch has more prompts")
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
