"""Values that are computed when they are asked for, so that nothing waits for the device before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

if TYPE_CHECKING:
    from typing_extensions import Self

_Value = TypeVar("_Value")
_Class = TypeVar("_Class", bound=type)


class Deferred(Generic[_Value]):
    """A value that is computed when it is first asked for, by calling this object."""

    def __init__(self, compute: Callable[[], _Value]) -> None:
        """Defer a computation.

        Args:
            compute: Computes the value. It is let go afterwards, with all that it refers to.
        """
        self._compute: Callable[[], _Value] | None = compute
        self._value: _Value | None = None

    def __call__(self) -> _Value:
        # Two threads may both compute it; they get the same.
        if (compute := self._compute) is not None:
            self._value = compute()
            self._compute = None
        return cast(_Value, self._value)


def defer(compute: Callable[[], _Value]) -> _Value:
    """Defer the value of a `deferrable` field. Type checkers take the result for the value that the field will have."""
    return cast(_Value, Deferred(compute))


class _DeferrableField:
    """An attribute whose value may be given as a `Deferred`; reading it gives the value itself."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self
        value = vars(instance)[self.name]
        if isinstance(value, Deferred):
            value = vars(instance)[self.name] = value()
        return value

    def __set__(self, instance: Any, value: Any) -> None:
        vars(instance)[self.name] = value


def deferrable(*names: str) -> Callable[[_Class], _Class]:
    """Let the fields of these names be given as a `Deferred`; for subclasses of `WithDeferredFields`."""

    def declare(cls: _Class) -> _Class:
        for name in names:
            setattr(cls, name, _DeferrableField(name))
        return cls

    return declare


class WithDeferredFields:
    """A dataclass some of whose fields are `deferrable`. Copies and pickles hold the values themselves."""

    def changed(self, **changes: Any) -> Self:
        """Return a copy with some fields changed. Unlike `dataclasses.replace`, it computes no deferred value."""
        return type(self)(**{each.name: vars(self)[each.name] for each in fields(cast(Any, self))} | changes)

    def __getstate__(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(cast(Any, self))}
