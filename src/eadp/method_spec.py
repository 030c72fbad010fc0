"""A method by its name, with its budget and options: what an evaluation or a measurement runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from eadp.methods import Method, NoPruning, get_method_class
from eadp.methods.base import PRESET, Newlines, Positions
from eadp.runtime.choose import BudgetOver

ALL_TOKENS, BLIND, MAJORITY = "all tokens", "blind", "majority answer"
"""What tables and files call the unpruned model and the controls: the model on a grey image, the most frequent answer.
Among methods the unpruned model is `none`."""
PLACING: dict[str, tuple[Any, ...]] = {
    "positions": get_args(Positions),
    "newlines": get_args(Newlines),
    "budget_over": get_args(BudgetOver),
    "unpad": (True, False),
}
"""Options of `attach` that go with any method, and their values."""
ANY_FAMILY = "llava"
"""Stands in for the model's family when a preset is checked before the model is loaded: the names of its options do
not depend on the family."""

Budget = int | float


@dataclass(frozen=True)
class MethodSpec:
    """A method with its budget and options, or a control.

    Attributes:
        method: The name of a method, or `ALL_TOKENS`, `BLIND` or `MAJORITY`.
        keep: The budget: a count, or a share; None for a control.
        options: The method's own options, its preset, and those of `PLACING`.
    """

    method: str
    keep: Budget | None = None
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def preset(self) -> str | None:
        return self.options.get(PRESET)

    @property
    def name(self) -> str:
        """The method as a user writes it: eadp, or with its preset eadp:published."""
        return self.method if self.preset is None else f"{self.method}:{self.preset}"

    @property
    def key(self) -> str:
        """A text that differs between any two specs; used in files and in their names."""
        budget = {} if self.keep is None else {"keep": self.keep}
        given = {**budget, **dict(sorted(self._others.items()))}
        return " ".join([self.name, *(f"{name}={value}" for name, value in given.items())])

    @property
    def attachment(self) -> dict[str, Any]:
        """The arguments of `attach`."""
        return {"method": self.method, "keep": self.keep, **self.options}

    @property
    def method_dict(self) -> dict[str, Any]:
        """What `Method.from_dict` is given."""
        own = {name: value for name, value in self.options.items() if name not in PLACING}
        return {"method": self.method, "keep": self.keep, **own}

    @property
    def _others(self) -> dict[str, Any]:
        return {name: value for name, value in self.options.items() if name != PRESET}

    def __str__(self) -> str:
        budget = f" {100 * self.keep:.4g} %" if isinstance(self.keep, float) else f" {self.keep}" if self.keep else ""
        return self.name + budget + "".join(f", {name}={value}" for name, value in self._others.items())


def parse_method(text: str, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Split a method from its preset: eadp:published is eadp with the option preset=published."""
    name, colon, preset = (part.strip() for part in text.partition(":"))
    if not colon:
        return name, dict(options)
    if not name or not preset:
        raise ValueError(f"a method and its preset are written eadp:published, got {text!r}")
    if options.get(PRESET, preset) != preset:
        raise ValueError(f"{text} has its preset in its name: leave out preset={options[PRESET]}")
    return name, {PRESET: preset, **options}


def build_specs(
    methods: Sequence[str], budgets: Sequence[Budget | None], options: Mapping[str, Mapping[str, Any]] | None = None
) -> list[MethodSpec]:
    """Combine every method with every budget, and check each combination.

    Args:
        methods: As a user writes them: "eadp" or "eadp:published".
        budgets: Counts or shares.
        options: By the name of a method, with or without its preset; "" for options of all methods.

    Raises:
        ValueError: If a method, an option or a value is unknown.
    """
    options = options or {}
    bare = {text: parse_method(text, {})[0] for text in methods}
    if strangers := sorted(set(options) - {"", *bare.keys(), *bare.values()}):
        raise ValueError(f"options are given for {', '.join(strangers)}, but the methods are {', '.join(methods)}")
    specs = []
    for text in methods:
        given = {**options.get("", {}), **options.get(bare[text], {}), **options.get(text, {})}
        name, own = parse_method(text, given)
        if get_method_class(name).takes_budget:
            specs += [MethodSpec(name, budget, own) for budget in budgets]
        else:
            NoPruning.check_settings(own)
            specs.append(MethodSpec(ALL_TOKENS))
    for spec in specs:
        build_method(spec)
    return specs


def build_method(spec: MethodSpec) -> Method | None:
    """Build the method of a spec, which checks its options; None for a control. A preset is that of `ANY_FAMILY`."""
    if spec.method in (ALL_TOKENS, BLIND):
        return None
    get_method_class(spec.method).check_settings(spec.options, also=[PRESET, *PLACING])
    for name, values in PLACING.items():
        if name in spec.options and spec.options[name] not in values:
            said = ", ".join(map(str, values))
            raise ValueError(f"{name} is one of {said}, got {spec.options[name]!r}")
    return Method.from_dict(spec.method_dict, family=ANY_FAMILY)
