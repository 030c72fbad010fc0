"""What is run: a method with its budget and options, or a control."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from eadp.methods import Method, make
from eadp.methods.base import REGISTRY

ALL, BLIND, MAJORITY = "all tokens", "blind", "majority answer"
Budget = int | float


@dataclass(frozen=True)
class Setting:
    """A method with a budget; or ALL, or BLIND (all tokens of a grey picture)."""

    method: str
    keep: Budget | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def pruning(self) -> Method | None:
        return None if self.method in (ALL, BLIND) else make(self.method, keep=self.keep, **self.options)

    @property
    def key(self) -> str:
        """Tells it from every other setting, in files and in their names."""
        budget = {} if self.keep is None else {"keep": self.keep}
        given = {**budget, **dict(sorted(self.options.items()))}
        return " ".join([self.method, *(f"{name}={value}" for name, value in given.items())])

    def __str__(self) -> str:
        budget = f" {100 * self.keep:.4g} %" if isinstance(self.keep, float) else f" {self.keep}" if self.keep else ""
        return self.method + budget + "".join(f", {name}={value}" for name, value in self.options.items())


def grid(
    methods: Sequence[str], budgets: Sequence[Budget], options: Mapping[str, Mapping[str, Any]] | None = None
) -> list[Setting]:
    """Every method at every budget, checked. options: a method's own, by its name; "" for those of all methods."""
    options = options or {}
    if strangers := sorted(set(options) - {"", *methods}):
        raise ValueError(f"options are given for {', '.join(strangers)}, but the methods are {', '.join(methods)}")
    settings = [
        Setting(name, budget, {**options.get("", {}), **options.get(name, {})})
        for name in methods
        for budget in budgets
    ]
    for setting in settings:
        check(setting)
    return settings


def check(setting: Setting) -> Method | None:
    """The method, where it takes these options."""
    known = [each.name for each in fields(REGISTRY[setting.method])] if setting.method in REGISTRY else []
    if known and (unknown := sorted(set(setting.options) - set(known))):
        raise ValueError(f"{setting.method} has no option {', '.join(unknown)}; it has {', '.join(sorted(known))}")
    return setting.pruning()
