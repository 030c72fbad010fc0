"""What every pruning method has, and the base class of those that prune before the language model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from eadp.core import Grid, Selection, TextGuide, TextLayout, VisualTokens

if TYPE_CHECKING:
    from typing_extensions import Self

Need = Literal["text", "vision_attention", "tower_rows", "language_attention", "pixels"]
"""What the runtime has to gather for a method.

text:               the question, encoded in a space that it shares with the visual tokens.
vision_attention:   the attention of some layers of the vision tower.
tower_rows:         the tokens as the vision tower returns them, before the projector.
language_attention: the attention of some layers of the language model.
pixels:             the image itself, to encode it again at a lower resolution.
"""

Positions = Literal["keep", "renumber"]
"""Kept tokens keep their positions (and coordinates), or are renumbered without gaps."""

Newlines = Literal["none", "kept rows", "all", "chosen"]
"""Which newline tokens of an image stay: none, those of rows with a kept token, all, or those that a method selects."""

METHOD, PRESET = "method", "preset"
"""The keys of a method's dict that are not settings."""


@dataclass(frozen=True)
class Method(ABC):
    """A pruning method: a frozen set of settings and the rule that selects tokens with them.

    Subclass `BeforeMethod` or `InsideMethod`, not this class. A subclass describes itself in class variables, declares
    its settings as dataclass fields, and is registered with `@register_method`.

    Attributes:
        name: The name by which `get_method` and the command line find the method.
        citation: The paper in a few words, or "control".
        needs: What the runtime has to gather for the method.
        merges: Whether kept tokens absorb dropped ones.
        positions: What the method's release does with the positions of kept tokens. `attach(positions=…)` overrides it.
        newlines: Which newline tokens the method's release keeps. `attach(newlines=…)` overrides it.
        presets: Named settings and other facts about the budget, in words, for `eadp methods`.
        takes_budget: Whether `keep` may be set.
        keep: How many tokens stay: a count (128) or a share of each image's tokens (0.25).
    """

    name: ClassVar[str]
    citation: ClassVar[str]
    needs: ClassVar[frozenset[Need]] = frozenset()
    merges: ClassVar[bool] = False
    positions: ClassVar[Positions] = "renumber"
    newlines: ClassVar[Newlines] = "none"
    presets: ClassVar[tuple[str, ...]] = ()
    takes_budget: ClassVar[bool] = True

    keep: int | float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        keep = self.keep
        if isinstance(keep, bool) or not isinstance(keep, (int, float, type(None))):
            raise TypeError(f"keep must be a count (128) or a share (0.25), got {keep!r}")
        if isinstance(keep, float) and not 0 < keep <= 1:
            raise ValueError(f"keep as a share must lie in (0, 1], got {keep}; for a count give an int")
        if isinstance(keep, int) and keep < 1:
            raise ValueError(f"keep must be at least 1, got {keep}")

    @property
    def settings(self) -> dict[str, Any]:
        """All settings by name, `keep` included, as they were given."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.init}

    @classmethod
    def default_settings(cls) -> dict[str, Any]:
        """Return the default of every setting by name; settings without a default are left out."""
        found = {}
        for each in fields(cls):
            if each.init and each.default is not MISSING:
                found[each.name] = each.default
            elif each.init and each.default_factory is not MISSING:
                found[each.name] = each.default_factory()
        return found

    @classmethod
    def check_settings(cls, names: Iterable[str], also: Iterable[str] = ()) -> None:
        """Check that the method has these settings.

        Args:
            names: Names of settings.
            also: Names that are accepted here although they are not settings of the method.

        Raises:
            ValueError: If a name is unknown. The message suggests the nearest name and lists all of them.
        """
        known = sorted({*(each.name for each in fields(cls) if each.init), *also})
        if not (unknown := sorted(set(names) - set(known))):
            return
        nearest = [match for name in unknown for match in get_close_matches(name, known, n=1)]
        hint = f" (did you mean {', '.join(dict.fromkeys(nearest))}?)" if nearest else ""
        method = getattr(cls, "name", cls.__name__)
        raise ValueError(f"{method} has no setting {', '.join(unknown)}{hint}; it has {', '.join(known)}")

    def with_settings(self, **settings: Any) -> Self:
        """Return a copy with some settings changed.

        Raises:
            ValueError: If the method does not have one of them, or does not accept its value.
        """
        self.check_settings(settings)
        return replace(self, **{name: _from_json(value) for name, value in settings.items()})

    def to_dict(self) -> dict[str, Any]:
        """Return the method as a dict that JSON can hold: its name under "method", and all its settings.

        Every setting is written, not only those that differ from the defaults, so that a stored dict keeps its meaning
        if a default changes. Tuples become lists. `Method.from_dict` is the inverse.

        Raises:
            TypeError: If a setting has a value that JSON cannot hold.
        """
        return {METHOD: self.name} | {
            name: _to_json(value, f"{self.name}'s setting {name}") for name, value in self.settings.items()
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], *, family: str | None = None) -> Self:
        """Build a method from a dict such as `to_dict` returns.

        `Method.from_dict` looks the class up by the name under "method". On a class of its own, such as
        `EADP.from_dict`, that name may be left out.

            Method.from_dict({"method": "eadp", "preset": "published", "keep": 64}, family="llava")

        Args:
            data: The method's name under "method", settings by name, and optionally the name of a preset under
                "preset". Settings that are given win over those of the preset. Lists become tuples.
            family: The `model_type` of the model, on which a preset may depend.

        Raises:
            ValueError: If the method, a setting or the preset is unknown, or a value is out of range.
            TypeError: If a value has the wrong type.
        """
        # Here, because the registry imports this module.
        from eadp.methods.registry import get_method_class

        settings = {name: _from_json(value) for name, value in data.items()}
        name, preset = settings.pop(METHOD, getattr(cls, "name", None)), settings.pop(PRESET, None)
        if not isinstance(name, str):
            raise ValueError(f'a method is given by its name, as in {{"method": "eadp", "keep": 64}}; got {dict(data)}')
        found = cls if name == getattr(cls, "name", None) else get_method_class(name)
        if not issubclass(found, cls):
            raise ValueError(f"{name} is no {cls.__name__}; Method.from_dict builds any method")
        found.check_settings(settings, also=[PRESET])
        if preset is not None:
            if family is None:
                raise ValueError(f"preset {preset!r} depends on the model: give family=, such as 'llava'")
            settings = {**found.preset_settings(preset, family), **settings}
        return found(**settings)

    @classmethod
    def preset_settings(cls, name: str, family: str) -> dict[str, Any]:
        """Return the settings of a preset.

        Args:
            name: The preset, such as "published".
            family: The `model_type` of the model.

        Raises:
            ValueError: If the method has no such preset, or the preset does not cover this family.
        """
        raise ValueError(f"{cls.name} has no preset {name!r}: its defaults are those of its release")

    def count_to_keep(self, total: int) -> int:
        """Return how many of `total` tokens `keep` asks for.

        Raises:
            ValueError: If `keep` is not set, or is a count larger than `total`.
        """
        if self.keep is None:
            raise ValueError(f"{self.name} needs keep= (a count such as 128, or a share such as 0.25)")
        if isinstance(self.keep, float):
            return max(1, round(self.keep * total))
        if self.keep > total:
            raise ValueError(f"keep={self.keep} is more than the image's {total} tokens")
        return self.keep

    def with_exact_count(self) -> Self:
        """Return the method with settings under which it sends exactly as many tokens as `keep` asks for.

        For comparisons at equal budgets, and for servers, which must know the count before they see the image.
        """
        return self

    def positions_for(self, family: str) -> Positions:
        """Return `positions`, where the release treats some models differently.

        Args:
            family: The `model_type` of the model.
        """
        return self.positions


@dataclass(frozen=True)
class BeforeMethod(Method):
    """A method that selects visual tokens before they enter the language model. Subclasses implement `select`.

    Attributes:
        uses_cls_attention: The method ranks tokens by the attention of the vision tower's CLS token, so where the tower
            has one, only that row is computed.
    """

    uses_cls_attention: ClassVar[bool] = False

    @abstractmethod
    def select(self, tokens: VisualTokens, text: TextGuide | None = None) -> Selection:
        """Select the tokens of one image (or clip) that stay.

        Args:
            tokens: The N visual tokens and whatever else `needs` names.
            text: The question, for methods that need "text".
        """

    @property
    def text_layout(self) -> TextLayout:
        """How the question is given to a text encoder of fixed length."""
        return "words"

    @property
    def keeps_deepstack(self) -> bool:
        """Whether kept tokens keep the DeepStack features that Qwen3-VL adds to them in its first layers."""
        return True

    @property
    def may_keep_fewer(self) -> bool:
        """Whether the method may keep fewer tokens than `keep`, so that it runs even if `keep` covers all of them."""
        return False

    def count_sent(self, patches: int, newlines: int = 0, has_layout: bool = True) -> int:
        """Return how many tokens of an image the language model receives, before the image is seen.

        Args:
            patches: The image's visual tokens.
            newlines: The newline tokens between its rows. Only methods that select among them count any.
            has_layout: Whether the blocks are crops of one image (see `VisualTokens.layout`), not frames of a clip.
        """
        return self.count_to_keep(patches)

    def vision_layers(self, depth: int, family: str) -> tuple[int, ...]:
        """Return the layers of the vision tower, counted from 0, whose attention `select` finds in `tokens.attention`.

        Args:
            depth: How many layers the tower has.
            family: The `model_type` of the model.
        """
        return ()

    def choose_resolutions(self, grids: Sequence[Grid], square: bool) -> list[Grid]:
        """Return the grid at which each block is encoded again for `tokens.downsampled`; (0, 0) drops a block.

        Called for methods that need "pixels".

        Args:
            grids: (rows, columns) of each block.
            square: Whether the model accepts square images only.
        """
        return []


def _to_json(value: Any, what: str) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return [_to_json(each, what) for each in value]
    raise TypeError(f"{what} is a {type(value).__name__}, which JSON cannot hold: {value!r}")


def _from_json(value: Any) -> Any:
    return tuple(_from_json(each) for each in value) if isinstance(value, list) else value
