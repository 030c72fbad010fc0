"""One call prunes a stock model; leaving the block gives it back as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, get_args

from torch import Tensor, nn

from eadp.core import Selection
from eadp.methods import BeforeMethod, InsideMethod, Method, NoPruning, get_method
from eadp.methods.base import Newlines, Positions
from eadp.models import Family, Picture, family_of
from eadp.runtime.before import BeforeLanguageModel
from eadp.runtime.choose import BudgetOver, Chooser
from eadp.runtime.hooks import MARK, Hooks
from eadp.runtime.inside import InsideLanguageModel
from eadp.runtime.sight import Sight

if TYPE_CHECKING:
    from eadp.models.guides.base import Guide

Question = str | Callable[[Tensor], str]

GATHERED = {"text", "vision_attention", "tower_rows", "pixels"}
"""What a method before the language model may need."""


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
    """Prune the visual tokens of `model` until the returned object is detached.

        with eadp.attach(model, processor, keep=64) as pruned:
            out = model.generate(**processor(images=image, text=prompt, return_tensors="pt"))
            pruned.last[0]

    model:       a stock transformers model of a known family (`eadp.models.FAMILIES`); `generate` and `forward` stay.
    processor:   reads the question from the prompt and finds the text guide. None where neither is needed: the method
                 takes no text, or `guide` and `question` are given.
    method:      a method's name, or a method. keep, coverage and further settings are the method's, and win over those
                 that a given method already has. Or two methods, one before the language model and one inside it.
    keep:        a count (64), or a share of each image's tokens (0.25). An image with no more tokens stays whole.
    preset:      a named set of the method's settings for this model: "paper" or "published" of EADP.
    guide:       brings text to the visual tokens; or the checkpoint (name or path) of the encoder to take for it.
    question:    what the prompt asks, or a function of its ids; default: the text of the last user turn.
    positions:   "keep" each token's own position and coordinates, or "renumber" without gaps, inside the language model
                 too. Default: what the model's configuration asks for (`eadp_positions`), else the method's release.
    budget_over: "image": a budget for each image or clip; "prompt": one over all that a prompt has.
    newlines:    which newline tokens stay: "none", those of "kept rows", or "all". Default: as the method's release.
                 They come on top of `keep`; `Selection.tokens_sent` counts them.
    unpad:       False keeps what LLaVA-NeXT crops away of its padded crops, in the model and in the processor, so that
                 every crop has all its tokens, as in the releases of EADP and CDPruner.
    """
    given = {name: value for name, value in {"keep": keep, "coverage": coverage}.items() if value is not None}
    family = family_of(model)
    before, inside = _chain(method, given | settings, preset, family.config.model_type)
    if budget_over not in get_args(BudgetOver):
        raise ValueError(f'budget_over must be "image" or "prompt", got {budget_over!r}')
    for what, value, known in (("positions", positions, Positions), ("newlines", newlines, Newlines)):
        if value is not None and value not in get_args(known):
            raise ValueError(f"{what} must be one of {', '.join(get_args(known))}, got {value!r}")
    if positions is None:
        positions = getattr(family.config, "eadp_positions", None)
    if before is not None and (more := sorted(before.needs - GATHERED)):
        raise ValueError(f"{before.name} needs {', '.join(more)}, which attach does not gather")
    if MARK in vars(family.base):
        raise RuntimeError("this model is pruned already; detach it first")
    text = _guide(model, processor, guide, before) if before is not None and "text" in before.needs else None
    return Pruned(model, family, before, inside, text, processor, question, positions, budget_over, newlines, unpad)


def detach(model: nn.Module) -> None:
    """End the pruning of a model, whichever handle `attach` returned for it.

    Args:
        model: The model that was given to `attach`.

    Raises:
        RuntimeError: If the model is not being pruned.
    """
    pruned = vars(family_of(model).base).get(MARK)
    if pruned is None:
        raise RuntimeError("this model is not being pruned: there is nothing to detach")
    pruned.detach()


def _chain(
    method: str | Method | Sequence[Method], settings: dict[str, Any], preset: str | None, family: str
) -> tuple[BeforeMethod | None, InsideMethod | None]:
    """The method before the language model, and the one inside it."""
    if isinstance(method, str | Method):
        method = _method(method, settings, preset, family)
        if isinstance(method, InsideMethod):
            return None, method
        if isinstance(method, BeforeMethod):
            return method, None
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
    return method[0], method[1]


def _method(method: str | Method, settings: dict[str, Any], preset: str | None, family: str) -> Method:
    if isinstance(method, str):
        return get_method(method, preset=preset, family=family, **settings)
    if preset is not None:
        raise TypeError(f"a preset goes with a method's name: method={method.name!r}, preset={preset!r}")
    return method.with_settings(**settings)


def _guide(model: nn.Module, processor: Any, guide: Guide | str | None, method: Method) -> Guide:
    if guide is not None and not isinstance(guide, str):
        return guide
    if processor is None:
        raise ValueError(f"{method.name} reads the question: give attach the processor, or a guide")
    from eadp.models.guides import guide_for

    return guide_for(model, processor, checkpoint=guide)


class Pruned:
    """A model under pruning. A context manager; `detach` ends it too."""

    def __init__(
        self,
        model: nn.Module,
        family: Family,
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
        self.family = family
        self.methods = tuple(method for method in (before, inside) if method is not None)
        self.method = self.methods[0]
        self.guide = guide
        self._processor = processor
        self._question = question
        self._asked: Sequence[str] | str | None = None
        self._hooks = Hooks()
        if not unpad:
            family.keep_padding(self._hooks, processor)
        kind = family.config.model_type
        chooser = Chooser(before or NoPruning(), guide, budget_over, None if before is None else newlines)
        cutting = None
        if inside is not None:
            cutting = InsideLanguageModel(model, family, inside, chooser, positions, newlines)
        sight = Sight(model, family, self._question_of, chooser.method)
        where = positions or chooser.method.positions_for(kind)
        self._pruning = BeforeLanguageModel(sight, chooser, where, cutting)
        self._pruning.install(self._hooks)
        self._hooks.override(family.base, MARK, self)

    @property
    def last(self) -> list[Selection]:
        """What the last prefill kept: one `Selection` an image or clip, in the order of the prompts."""
        return self._pruning.selections

    @property
    def pictures(self) -> list[Picture]:
        """The grids and the layout of the images and clips that `last` speaks of."""
        return self._pruning.pictures

    @property
    def columns(self) -> Tensor | None:
        """B×L, which columns of the last prefill's prompts stayed; None before the first."""
        return self._pruning.columns

    @contextmanager
    def asking(self, question: str | Sequence[str]) -> Iterator[Pruned]:
        """Within the block the prompts ask this, whatever their text is: one question, or one for each prompt."""
        former, self._asked = self._asked, question
        try:
            yield self
        finally:
            self._asked = former

    def detach(self) -> None:
        """Give the model back as it was. Detaching twice does nothing."""
        self._hooks.undo()

    def __enter__(self) -> Pruned:
        return self

    def __exit__(self, *exception: object) -> None:
        self.detach()

    def _question_of(self, row: int, ids: Tensor | None) -> str:
        """ids: L, one prompt of the batch without padding."""
        asked = self._asked if self._asked is not None else self._question
        if isinstance(asked, str):
            return asked
        if isinstance(asked, Sequence):
            if row >= len(asked):
                raise ValueError(f"{len(asked)} questions were given, but the batch has more prompts")
            return asked[row]
        if ids is None:
            raise ValueError("a prompt given as inputs_embeds has no text: say the question with pruned.asking(…)")
        if asked is not None:
            return asked(ids)
        if self._processor is None:
            raise ValueError(
                f"{self.method.name} needs the question: attach with processor= or question=, or use pruned.asking(…)"
            )
        from eadp.models.question import question_of

        return question_of(ids, self._processor, self.family.config)
