"""A method with its budget and options, as an evaluation or a measurement runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from eadp.methods import Method, NoPruning, get_method_class, list_methods
from eadp.methods.base import PRESET, Newlines, Positions
from eadp.runtime.choose import BudgetOver

ALL_TOKENS, BLIND, MAJORITY = "all tokens", "blind", "majority answer"
"""The names of the unpruned model and of two controls in tables and files.

The controls are the model on a grey image and the most frequent answer. As a method, the unpruned model is `none`.
"""

ATTACH_OPTIONS: dict[str, tuple[Any, ...]] = {
    "positions": get_args(Positions),
    "newlines": get_args(Newlines),
    "budget_over": get_args(BudgetOver),
    "unpad": (True, False),
}
"""The options of `attach` that every method accepts, with their values."""

ZOO = "zoo"
"""In a list of methods: all methods that take a budget, each with the settings under which it keeps to it."""

ANY_FAMILY = "llava"
"""The family for which a preset is checked before the model is loaded.

The names of a preset's settings do not depend on the family.
"""

Budget = int | float


@dataclass(frozen=True)
class MethodSpec:
    """A method with its budget and options, or a control.

    Attributes:
        method: The name of a method, or `ALL_TOKENS`, `BLIND` or `MAJORITY`.
        keep: The budget: a count or a share; None for a control.
        options: Settings of the method, its preset, and options of `attach` (`ATTACH_OPTIONS`).
    """

    method: str
    keep: Budget | None = None
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def preset(self) -> str | None:
        """The name of the preset, if there is one."""
        return self.options.get(PRESET)

    @property
    def name(self) -> str:
        """The method as a user writes it: "eadp", or with its preset "eadp:published"."""
        return self.method if self.preset is None else f"{self.method}:{self.preset}"

    @property
    def key(self) -> str:
        """A text that identifies the spec in files and in their names."""
        budget = {} if self.keep is None else {"keep": self.keep}
        settings = {**budget, **dict(sorted(self._options_without_preset.items()))}
        return " ".join([self.name, *(f"{name}={value}" for name, value in settings.items())])

    @property
    def attach_arguments(self) -> dict[str, Any]:
        """The keyword arguments for `attach`."""
        return {"method": self.method, "keep": self.keep, **self.options}

    @property
    def method_dict(self) -> dict[str, Any]:
        """The method in the form that `Method.from_dict` reads, without the options of `attach`."""
        own = {name: value for name, value in self.options.items() if name not in ATTACH_OPTIONS}
        return {"method": self.method, "keep": self.keep, **own}

    @property
    def _options_without_preset(self) -> dict[str, Any]:
        return {name: value for name, value in self.options.items() if name != PRESET}

    def __str__(self) -> str:
        budget = f" {100 * self.keep:.4g} %" if isinstance(self.keep, float) else f" {self.keep}" if self.keep else ""
        return self.name + budget + "".join(f", {name}={value}" for name, value in self._options_without_preset.items())


def parse_method(text: str, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Split a method from its preset.

    Args:
        text: "eadp", or with a preset "eadp:published".
        options: The options of the method.

    Returns:
        The name of the method, and the options with the preset among them.

    Raises:
        ValueError: If the text is malformed, or the options name another preset.
    """
    name, colon, preset = (part.strip() for part in text.partition(":"))
    if not colon:
        return name, dict(options)
    if not name or not preset:
        raise ValueError(f"a method and its preset are written eadp:published, got {text!r}")
    if options.get(PRESET, preset) != preset:
        raise ValueError(f"{text} already names its preset: leave out preset={options[PRESET]}")
    return name, {PRESET: preset, **options}


def build_specs(
    methods: Sequence[str], budgets: Sequence[Budget | None], options: Mapping[str, Mapping[str, Any]] | None = None
) -> list[MethodSpec]:
    """Combine every method with every budget, and check each combination.

    Args:
        methods: As a user writes them: "eadp" or "eadp:published", or `ZOO`.
        budgets: Counts or shares.
        options: By the name of a method, with or without its preset; "" for options of all methods.

    Raises:
        ValueError: If a method, an option or a value is unknown.
    """
    options, zoo = options or {}, {}
    if ZOO in methods:
        zoo = equal_budget_options()
        methods = list(dict.fromkeys([*(name for name in methods if name != ZOO), *zoo]))
    names = {text: parse_method(text, {})[0] for text in methods}
    if unused := sorted(set(options) - {"", *names.keys(), *names.values()}):
        raise ValueError(f"options are given for {', '.join(unused)}, but the methods are {', '.join(methods)}")
    specs = []
    for text in methods:
        merged = {**zoo.get(text, {}), **options.get("", {}), **options.get(names[text], {}), **options.get(text, {})}
        name, own = parse_method(text, merged)
        if get_method_class(name).takes_budget:
            specs += [MethodSpec(name, budget, own) for budget in budgets]
        else:
            NoPruning.check_settings(own)
            specs.append(MethodSpec(ALL_TOKENS))
    for spec in specs:
        build_method(spec)
    return specs


def equal_budget_options() -> dict[str, dict[str, Any]]:
    """Return all methods that take a budget, with the options that make their budgets mean the same.

    With `exact`, a method sends as many tokens as `keep` says, where its release sends more or fewer. The budget of a
    method inside the language model counts what the last cut leaves.
    """
    found: dict[str, dict[str, Any]] = {}
    for name in list_methods():
        method = get_method_class(name)
        if method.takes_budget:
            wanted = {"exact": True, "budget": "after_prune"}
            defaults = method.default_settings()
            found[name] = {
                option: value for option, value in wanted.items() if option in defaults and defaults[option] != value
            }
    return found


def build_method(spec: MethodSpec) -> Method | None:
    """Build the method of a spec, with the preset of `ANY_FAMILY`.

    Returns:
        The method, or None for the unpruned model and the blind control.

    Raises:
        ValueError: If the method, an option or a value is unknown.
    """
    if spec.method in (ALL_TOKENS, BLIND):
        return None
    get_method_class(spec.method).check_settings(spec.options, also=[PRESET, *ATTACH_OPTIONS])
    for name, values in ATTACH_OPTIONS.items():
        if name in spec.options and spec.options[name] not in values:
            known = ", ".join(map(str, values))
            raise ValueError(f"{name} must be one of {known}, got {spec.options[name]!r}")
    return Method.from_dict(spec.method_dict, family=ANY_FAMILY)
