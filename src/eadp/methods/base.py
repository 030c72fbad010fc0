"""What every pruning method has, and the registry that finds methods by name.

The registry holds the methods of this package, those that a program registers, and those of other packages.
"""

from __future__ import annotations

import inspect
import re
from abc import ABC
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, fields, replace
from difflib import get_close_matches
from importlib.metadata import entry_points
from numbers import Integral, Real
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar

from eadp.methods.settings import Range, check_settings_of, json_schema

if TYPE_CHECKING:
    from typing_extensions import Self

Need = Literal[
    "text",
    "word_embeddings",
    "vision_attention",
    "tower_rows",
    "tower_features",
    "language_attention",
    "pixels",
    "padding",
]
"""What the runtime has to gather for a method.

text:               the question, encoded in a space that it shares with the visual tokens.
word_embeddings:    the question as input embeddings of the language model, whatever text encoder the model has.
vision_attention:   the attention of some layers of the vision tower.
tower_rows:         the tokens as the vision tower returns them, before the projector.
tower_features:     the mean of each token's patches before the projector, to compare tokens by.
language_attention: the attention of some layers of the language model.
pixels:             the image itself, to encode it again at a lower resolution.
padding:            which tokens show only the padding that makes an image square.
"""

Positions = Literal["keep", "renumber"]
"""Kept tokens keep their positions (and coordinates), or are renumbered without gaps."""

Newlines = Literal["none", "kept rows", "all", "chosen"]
"""Which newline tokens of an image stay: none, those of rows with a kept token, all, or those that a method selects."""

METHOD, PRESET = "method", "preset"
"""The keys of a method's dict that are not settings."""

ENTRY_POINTS = "eadp.methods"
"""The group of entry points under which other packages offer their methods."""


@dataclass(frozen=True)
class Method(ABC):
    """A pruning method: a frozen set of settings and the rule that selects tokens with them.

    Subclass `BeforeMethod` or `InsideMethod`, not this class. A subclass describes itself in class variables, declares
    its settings as dataclass fields, and is registered with `@register_method`. Values of settings are checked against
    the annotations of the fields: see `eadp.methods.settings`.

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

    keep: Annotated[int, Range(1)] | Annotated[float, Range(0, 1, open_low=True)] | None = field(
        default=None, kw_only=True
    )

    def __post_init__(self) -> None:
        keep = self.keep
        if isinstance(keep, bool) or not isinstance(keep, Real | None):
            raise TypeError(f"keep must be a count (128) or a share (0.25), got {keep!r}")
        if isinstance(keep, Real) and not isinstance(keep, Integral) and not 0 < keep <= 1:
            raise ValueError(f"keep as a share must lie in (0, 1], got {keep}; for a count give an int")
        check_settings_of(self)

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
    def settings_schema(cls) -> dict[str, Any]:
        """Return a JSON schema of the method's settings: their types, ranges and defaults."""
        return json_schema(cls)

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
        settings = {name: _from_json(value) for name, value in data.items()}
        name, preset = settings.pop(METHOD, getattr(cls, "name", None)), settings.pop(PRESET, None)
        if not isinstance(name, str):
            raise ValueError(f'a method is given by its name, as in {{"method": "eadp", "keep": 64}}; got {dict(data)}')
        found = cls if name == getattr(cls, "name", None) else get_method_class(name)
        if not issubclass(found, cls):
            raise ValueError(f"{name} is not a subclass of {cls.__name__}; Method.from_dict builds any method")
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

    def for_family(self, family: str) -> Self:
        """Return the method with the settings of its release for a family, where they depend on it and were left open.

        Args:
            family: The `model_type` of the model.
        """
        return self

    def positions_for(self, family: str) -> Positions:
        """Return `positions`, where the release treats some models differently.

        Args:
            family: The `model_type` of the model.
        """
        return self.positions


_AnyMethod = TypeVar("_AnyMethod", bound=type[Method])

_methods: dict[str, type[Method]] = {}
_loaded_entry_points = False


def register_method(cls: _AnyMethod) -> _AnyMethod:
    """Register a method under its `name`, so that `get_method`, `attach` and the command line find it.

        @eadp.register_method
        @dataclass(frozen=True)
        class First(eadp.BeforeMethod):
            name: ClassVar[str] = "first"
            citation: ClassVar[str] = "mine"

            def select(self, tokens, text=None): ...

    Another package offers its methods as entry points of the group `eadp.methods`: each names a class, or a module
    that registers some. They are loaded when methods are first listed or looked up.

    Args:
        cls: A concrete subclass of `BeforeMethod` or `InsideMethod`.

    Returns:
        The class itself. Running the same definition again, as notebooks do, replaces the former one.

    Raises:
        TypeError: If this is not a concrete subclass of `Method`, lacks its name or citation, or is not a dataclass.
        ValueError: If another class has the same name.
    """
    if not (isinstance(cls, type) and issubclass(cls, Method)):
        raise TypeError(f"a method is a subclass of BeforeMethod or InsideMethod, got {cls!r}")
    if inspect.isabstract(cls):
        raise TypeError(f"{_path(cls)} does not implement {', '.join(sorted(cls.__abstractmethods__))}")
    for attribute in ("name", "citation"):
        if not isinstance(getattr(cls, attribute, None), str):
            raise TypeError(f"{_path(cls)} needs a class variable {attribute}, a string")
    if missing := _annotated(cls) - {each.name for each in fields(cls)}:
        raise TypeError(
            f"{', '.join(sorted(missing))} of {_path(cls)} would not be a setting: write @dataclass(frozen=True) "
            "between @register_method and the class"
        )
    former = _methods.get(cls.name)
    if former is not None and _path(former) != _path(cls):
        raise ValueError(
            f"two methods are called {cls.name!r}: {_path(former)} and {_path(cls)}; give one of them another name"
        )
    _methods[cls.name] = cls
    return cls


def list_methods() -> list[str]:
    """Return the names of all methods, sorted, those of other packages included."""
    _load_entry_points()
    return sorted(_methods)


def get_method_class(name: str) -> type[Method]:
    """Return the class of the method called `name`.

    Raises:
        ValueError: If there is no such method. The message lists those that there are.
    """
    _load_entry_points()
    if name not in _methods:
        raise ValueError(f"unknown method {name!r}; known: {', '.join(list_methods())}")
    return _methods[name]


def get_method(name: str, *, preset: str | None = None, family: str | None = None, **settings: Any) -> Method:
    """Build the method called `name`: `get_method("cdpruner", keep=64)`.

    Args:
        name: One of `list_methods()`.
        preset: A named set of settings, such as "published" of EADP.
        family: The `model_type` of the model that the preset is for, such as "llava" or "qwen2_5_vl".
        settings: The method's settings. They win over those of the preset.

    Raises:
        ValueError: If the method, a setting or the preset is unknown, or a value is out of range.
        TypeError: If a value has the wrong type.
    """
    return Method.from_dict({METHOD: name, PRESET: preset, **settings}, family=family)


@contextmanager
def restored_registry() -> Iterator[None]:
    """Forget all methods that are registered within the block when it ends; for tests."""
    global _loaded_entry_points
    former, loaded = dict(_methods), _loaded_entry_points
    try:
        yield
    finally:
        _methods.clear()
        _methods.update(former)
        _loaded_entry_points = loaded


def _load_entry_points() -> None:
    global _loaded_entry_points
    if _loaded_entry_points:
        return
    # First, because what is loaded may itself look methods up.
    _loaded_entry_points = True
    try:
        for entry in entry_points(group=ENTRY_POINTS):
            try:
                loaded = entry.load()
            except Exception as error:
                package = "another package" if entry.dist is None else entry.dist.name
                sentence = f"{package} offers the method {entry.value}, which cannot be loaded: {error}"
                raise RuntimeError(sentence) from error
            if not inspect.ismodule(loaded):
                register_method(loaded)
    except Exception:
        _loaded_entry_points = False
        raise


def _annotated(cls: type) -> set[str]:
    """Return the names that the class itself annotates as fields."""
    annotations = inspect.get_annotations(cls)
    return {name for name, kind in annotations.items() if not re.match(r"(typing\.)?ClassVar\b", str(kind))}


def _path(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _to_json(value: Any, what: str) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return [_to_json(each, what) for each in value]
    raise TypeError(f"{what} is a {type(value).__name__}, which JSON cannot hold: {value!r}")


def _from_json(value: Any) -> Any:
    return tuple(_from_json(each) for each in value) if isinstance(value, list) else value
