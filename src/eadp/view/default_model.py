"""Which model looks at an image of the user when none is named."""

from __future__ import annotations

from eadp.pocket.names import PHOTO, POCKET


def choose_model(name: str | None) -> tuple[str, tuple[str, ...]]:
    """Choose the model for photographs if none is named and its weights are installed, otherwise the pocket model.

    Args:
        name: The name of a model, or None.

    Returns:
        The name of the model, and sentences to show with its answers about why it is this one.

    Raises:
        ValueError: If an installed file with weights is not the expected one.
    """
    if name is not None:
        return name, ()
    from eadp.pocket.photo import find_missing

    missing = find_missing()
    if missing is None:
        return PHOTO, ()
    return POCKET, (f"No model was named, and the one for photographs cannot be loaded: {missing}.",)
