"""What is run: a method with its budget and options, or a control."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from eadp.methods import Method, NoPruning, get_method_class
from eadp.methods.base import PRESET, Newlines, Positions
from eadp.runtime.choose import BudgetOver

ALL, BLIND, MAJORITY = "all tokens", "blind", "majority answer"
"""How tables and files call the unpruned model and the controls. Among methods the unpruned model is `none`."""
PLACING: dict[str, tuple[Any, ...]] = {
    "positions": get_args(Positions),
    "newlines": get_args(Newlines),
    "budget_over": get_args(BudgetOver),
    "unpad": (True, False),
}
"""Options that belong to `attach`, whatever the method is, and their values."""
ANY_FAMILY = "llava"
"""For a look at a preset before the model is loaded: its values differ between families, its names do not."""

Budget = int | float


@dataclass(frozen=True)
class Setting:
    """A method with a budget; or ALL, or BLIND (all tokens of a grey picture).

    options: the method's own, its preset, and PLACING.
    """

    method: str
    keep: Budget | None = None
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def preset(self) -> str | None:
        return self.options.get(PRESET)

    @property
    def name(self) -> str:
        """The method as it is written: eadp, or with its preset eadp:published."""
        return self.method if self.preset is None else f"{self.method}:{self.preset}"

    @property
    def key(self) -> str:
        """Tells it from every other setting, in files and in their names."""
        budget = {} if self.keep is None else {"keep": self.keep}
        given = {**budget, **dict(sorted(self._others.items()))}
        return " ".join([self.name, *(f"{name}={value}" for name, value in given.items())])

    @property
    def attachment(self) -> dict[str, Any]:
        """What `attach` is given."""
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


def parse(text: str, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """A method as it is written, and its options: eadp:published is eadp with the option preset=published."""
    name, colon, preset = (part.strip() for part in text.partition(":"))
    if not colon:
        return name, dict(options)
    if not name or not preset:
        raise ValueError(f"a method and its preset are written eadp:published, got {text!r}")
    if options.get(PRESET, preset) != preset:
        raise ValueError(f"{text} has its preset in its name: leave out preset={options[PRESET]}")
    return name, {PRESET: preset, **options}


def grid(
    methods: Sequence[str], budgets: Sequence[Budget | None], options: Mapping[str, Mapping[str, Any]] | None = None
) -> list[Setting]:
    """Every method at every budget, checked.

    methods: as they are written, "eadp" or "eadp:published".
    options: a method's own, by its name with or without the preset; "" for those of all methods.
    """
    options = options or {}
    bare = {text: parse(text, {})[0] for text in methods}
    if strangers := sorted(set(options) - {"", *bare.keys(), *bare.values()}):
        raise ValueError(f"options are given for {', '.join(strangers)}, but the methods are {', '.join(methods)}")
    settings = []
    for text in methods:
        given = {**options.get("", {}), **options.get(bare[text], {}), **options.get(text, {})}
        name, own = parse(text, given)
        if get_method_class(name).takes_budget:
            settings += [Setting(name, budget, own) for budget in budgets]
        else:
            NoPruning.check_settings(own)
            settings.append(Setting(ALL))
    for setting in settings:
        check(setting)
    return settings


def check(setting: Setting) -> Method | None:
    """The method, where it takes these options; None for a control. With a preset it is that of ANY_FAMILY."""
    if setting.method in (ALL, BLIND):
        return None
    get_method_class(setting.method).check_settings(setting.options, also=[PRESET, *PLACING])
    for name, values in PLACING.items():
        if name in setting.options and setting.options[name] not in values:
            said = ", ".join(map(str, values))
            raise ValueError(f"{name} is one of {said}, got {setting.options[name]!r}")
    return Method.from_dict(setting.method_dict, family=ANY_FAMILY)
