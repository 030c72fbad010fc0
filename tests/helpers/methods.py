"""The names of the methods that take a budget, for tests that run all of them."""

from __future__ import annotations

from eadp.methods import BeforeMethod, get_method_class, list_methods

PRUNING = [name for name in list_methods() if get_method_class(name).takes_budget]
BEFORE = [name for name in PRUNING if issubclass(get_method_class(name), BeforeMethod)]
