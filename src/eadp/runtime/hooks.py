"""Hooks into a model, and their removal."""

from __future__ import annotations

import weakref
from collections.abc import Callable, MutableMapping
from functools import wraps
from types import MethodType
from typing import Any

from torch import nn

from eadp.models.overrides import ABSENT, Overrides

MARK = "_eadp"
"""Set on a base model that is being pruned: its `Pruned`."""

Forward = Callable[..., Any]
Around = Callable[[nn.Module, Forward, tuple[Any, ...], dict[str, Any]], Any]
"""Called in place of a forward, with the module that is called, its own forward, and the arguments."""

_HOOKS = (
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
)
_REPLICA = "eadp_replica"


class Hooks(Overrides):
    """All hooks and overrides of a model, which `undo` removes.

    Copies and pickles of the model do not get them: they are unpruned models. Replicas of `torch.nn.DataParallel` do,
    and hooks are called with the replica.
    """

    def __init__(self) -> None:
        super().__init__()
        self._ids: set[int] = set()
        self._hidden: set[nn.Module] = set()

    def override(self, owner: Any, name: str, value: Any) -> None:
        super().override(owner, name, value)
        if isinstance(owner, nn.Module):
            self._hide_from_copies(owner)

    def before(self, module: nn.Module, hook: Callable[..., Any]) -> None:
        """Run a hook before each forward of a module."""
        self._register(module, module.register_forward_pre_hook(hook, with_kwargs=True))

    def after(self, module: nn.Module, hook: Callable[..., Any]) -> None:
        """Run a hook after each forward of a module, also after an `Exception`, then without an output."""
        self._register(module, module.register_forward_hook(hook, with_kwargs=True, always_call=True))

    def around(self, module: nn.Module, call: Around) -> None:
        """Run a function in place of each forward of a module.

        A hook after a forward does not run after a KeyboardInterrupt; the function can clean up after anything.
        """
        former, own_forward = vars(module).get("forward"), module.forward

        @wraps(own_forward)
        def forward(*args: Any, eadp_replica: nn.Module | None = None, **kwargs: Any) -> Any:
            if eadp_replica is None:
                return call(module, own_forward, args, kwargs)
            replicas_forward = former or MethodType(type(eadp_replica).forward, eadp_replica)
            return call(eadp_replica, replicas_forward, args, kwargs)

        def name_replica(called: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            # A replica has the attributes of the module that it is a copy of, this `forward` among them.
            return None if called is module else (args, {**kwargs, _REPLICA: called})

        self.override(module, "forward", forward)
        self.before(module, name_replica)

    def register(self, module: nn.Module, registry: MutableMapping[str, Any], name: str, value: Any) -> None:
        """Add an entry to a registry. It is removed, too, if the module is gone before the hooks were undone."""
        registry[name] = value
        remove = weakref.finalize(module, registry.pop, name, None)
        remove.atexit = False
        self._undo.append(remove)

    def __enter__(self) -> Hooks:
        return self

    def _register(self, module: nn.Module, handle: Any) -> None:
        self._ids.add(handle.id)
        self._undo.append(handle.remove)
        self._hide_from_copies(module)

    def _hide_from_copies(self, module: nn.Module) -> None:
        """Make the state of a module, from which copies and pickles are made, that of the unpruned model."""
        if module in self._hidden:
            return
        self._hidden.add(module)
        former_getstate, getstate_of_class = (
            vars(module).get("__getstate__"),
            getattr(type(module), "__getstate__", vars),
        )

        def getstate() -> dict[str, Any]:
            state = dict(former_getstate() if former_getstate is not None else getstate_of_class(module))
            for owner, name, former in reversed(self._overridden):
                if owner is module and former is ABSENT:
                    state.pop(name, None)
                elif owner is module:
                    state[name] = former
            for name in _HOOKS:
                state[name] = type(state[name])(
                    (key, hook) for key, hook in state[name].items() if key not in self._ids
                )
            return state

        super().override(module, "__getstate__", getstate)

    def undo(self) -> None:
        super().undo()
        self._ids.clear()
        self._hidden.clear()
