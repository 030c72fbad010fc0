"""Turn the arguments of `attach` into the settings of a model: its methods, its guide, and where tokens go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, get_args

from torch import nn

from eadp.methods import BeforeMethod, InsideMethod, Method, get_method
from eadp.methods.base import Newlines, Positions
from eadp.models import FamilyAdapter
from eadp.runtime.choose import BudgetOver
from eadp.runtime.settings import Settings
from eadp.runtime.vision import check_tower

if TYPE_CHECKING:
    from eadp.models.guides.base import Guide

BUDGETS = ("keep", "coverage")
"""The budgets of a method, of which one replaces the other."""

TWO_METHODS = "[EADP(keep=128), PyramidDrop()]"

GATHERED = {"text", "word_embeddings", "vision_attention", "tower_rows", "tower_features", "pixels", "padding"}
"""What a method that prunes before the language model may need."""


def resolve_settings(model: nn.Module, adapter: FamilyAdapter, processor: Any, arguments: dict[str, Any]) -> Settings:
    """Resolve the arguments of `attach` for one model."""
    named = dict(arguments)
    method, preset, guide, question = (named.pop(name) for name in ("method", "preset", "guide", "question"))
    positions, budget_over, newlines = (named.pop(name) for name in ("positions", "budget_over", "newlines"))
    given = {name: value for name, value in named.items() if name not in BUDGETS or value is not None}
    before, inside = _resolve_methods(method, given, preset, adapter.config.model_type)
    if budget_over not in get_args(BudgetOver):
        raise ValueError(f'budget_over must be "image" or "prompt", got {budget_over!r}')
    for name, value, known in (("positions", positions, Positions), ("newlines", newlines, Newlines)):
        if value is not None and value not in get_args(known):
            raise ValueError(f"{name} must be one of {', '.join(get_args(known))}, got {value!r}")
    if question is not None and not isinstance(question, str | Sequence) and not callable(question):
        raise TypeError(
            f"question must be a text, one text per prompt, or a function of the prompt's ids, got {question!r}"
        )
    if positions is None:
        positions = getattr(adapter.config, "eadp_positions", None)
    if before is not None and (more := sorted(before.needs - GATHERED)):
        raise ValueError(f"{before.name} needs {', '.join(more)}, which attach does not gather")
    if before is not None:
        check_tower(adapter, before)
    text = None if before is None else _resolve_guide(model, processor, guide, before)
    return Settings(before, inside, text, question, positions, budget_over, newlines, arguments)


def _resolve_methods(
    method: str | Method | Sequence[str | Method], settings: dict[str, Any], preset: str | None, family: str
) -> tuple[BeforeMethod | None, InsideMethod | None]:
    """Return the method that prunes before the language model, and the one that prunes inside it."""
    if isinstance(method, str | Method):
        method = _resolve_method(method, settings, preset, family)
        if isinstance(method, InsideMethod):
            return None, method
        if isinstance(method, BeforeMethod):
            return method.for_family(family), None
        raise TypeError(f"a method is a BeforeMethod or an InsideMethod, which {type(method).__name__} is not")
    if not isinstance(method, Sequence) or not all(isinstance(each, str | Method) for each in method):
        raise TypeError(f"method must be the name of a method, a method such as EADP(keep=64), or two; got {method!r}")
    if preset is not None:
        raise TypeError("a preset is for one method named by its name, not for a list of methods")
    if settings:
        raise TypeError(f"give {', '.join(settings)} to the methods of the list, as in {TWO_METHODS}, not to attach")
    try:
        methods = [_resolve_method(each, {}, None, family) for each in method]
    except ValueError as error:
        raise ValueError(f"{error}; in a list, methods are given with their settings, as in {TWO_METHODS}") from error
    if len(methods) != 2 or not isinstance(methods[0], BeforeMethod) or not isinstance(methods[1], InsideMethod):
        raise ValueError(
            "a list of methods is one that prunes before the language model and one that prunes inside it, "
            f"such as {TWO_METHODS}; got {[each.name for each in methods]}"
        )
    return methods[0].for_family(family), methods[1]


def _resolve_method(method: str | Method, settings: dict[str, Any], preset: str | None, family: str) -> Method:
    if isinstance(method, str):
        return get_method(method, preset=preset, family=family, **settings)
    if preset is not None:
        raise TypeError(f"a preset goes with a method's name: method={method.name!r}, preset={preset!r}")
    if any(settings.get(name) is not None for name in BUDGETS):
        # The one budget replaces the other.
        settings = {name: None for name in BUDGETS if name in method.settings} | settings
    return method.with_settings(**settings)


def _resolve_guide(model: Any, processor: Any, guide: Guide | str | None, method: Method) -> Guide | None:
    """Return the guide of a method; None if the method reads no text."""
    from eadp.models.guides import EmbeddingGuide, shared_guide_for

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
    return shared_guide_for(model, processor, checkpoint=guide if isinstance(guide, str) else None)
