"""Whether a model is being pruned, as the KV caches that it filled see it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch import nn

_attachments: weakref.WeakKeyDictionary[nn.Module, Attachment] = weakref.WeakKeyDictionary()


class Attachment:
    """Says whether a model is being pruned. A model has the same one each time it is attached.

    Attributes:
        session: A new object each time the model is attached; None while it is not being pruned.
    """

    def __init__(self) -> None:
        self.session: object | None = None

    @property
    def is_active(self) -> bool:
        """Whether the model is being pruned."""
        return self.session is not None

    def run(self, session: object, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a forward that needs the hooks of a session.

        Raises:
            RuntimeError: If another thread ended the session meanwhile, so that some hooks may not have run.
        """
        try:
            output = forward(*args, **kwargs)
        except Exception:
            self._check(session)
            raise
        self._check(session)
        return output

    def _check(self, session: object) -> None:
        if self.session is not session:
            raise RuntimeError("the model was detached during this call; attach it again and repeat the call")

    def __deepcopy__(self, memo: dict[int, Any]) -> Attachment:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _AnyAttachment, ()


class _AnyAttachment(Attachment):
    """The attachment of a cache that was pickled, which no longer knows its model: any model that is pruned will do."""

    @property
    def is_active(self) -> bool:
        return any(each.is_active for each in list(_attachments.values()))


def attachment_of(base: nn.Module) -> Attachment:
    """The attachment of a base model."""
    return _attachments.setdefault(base, Attachment())
