"""Methods are listed, looked up, registered, and offered by other packages."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Any, ClassVar

import pytest
import torch

import eadp
from eadp.core import Selection, TextGuide, VisualTokens
from eadp.methods import base


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    with base.restored_registry():
        yield


def define(name: str = "first", cls: str = "First") -> type[eadp.BeforeMethod]:
    """A method that is not registered."""

    @dataclass(frozen=True)
    class First(eadp.BeforeMethod):
        citation: ClassVar[str] = "a test"
        start: int = 0

        def select(self, tokens: VisualTokens, text: TextGuide | None = None) -> Selection:
            kept = torch.arange(self.start, self.start + self.count_to_keep(len(tokens)))
            return Selection(kept, len(tokens), self.name)

    First.name = name
    First.__qualname__ = cls
    return First


def offer(monkeypatch: pytest.MonkeyPatch, **loaded: Any) -> list[str]:
    """Let another package offer these objects, each as one entry point. The list tells which were loaded, and when."""
    loads: list[str] = []

    class Offered(EntryPoint):
        def load(self) -> Any:
            loads.append(self.name)
            if isinstance(found := loaded[self.name], Exception):
                raise found
            return found

    entries = [Offered(name, f"package:{name}", base.ENTRY_POINTS) for name in loaded]
    monkeypatch.setattr(base, "entry_points", lambda group: entries if group == "eadp.methods" else [])
    monkeypatch.setattr(base, "_loaded_entry_points", False)
    return loads


def test_every_method_class_is_exported_by_both_modules() -> None:
    for name in eadp.list_methods():
        cls = eadp.methods.get_method_class(name)
        assert getattr(eadp, cls.__name__) is getattr(eadp.methods, cls.__name__) is cls
        assert {cls.__name__} <= set(eadp.__all__) & set(eadp.methods.__all__)


def test_the_base_classes_are_siblings() -> None:
    assert eadp.BeforeMethod.__bases__ == eadp.InsideMethod.__bases__ == (eadp.Method,)
    assert not hasattr(eadp.InsideMethod, "select")
    assert not hasattr(eadp.BeforeMethod, "choose")
    for name in eadp.list_methods():
        cls = eadp.methods.get_method_class(name)
        assert issubclass(cls, eadp.BeforeMethod) != issubclass(cls, eadp.InsideMethod)


def test_dir_lists_what_is_imported_lazily() -> None:
    program = (
        "import sys, eadp\n"
        "assert {'attach', 'detach', 'Pruned', 'load_pocket', 'diagnose_sign', *eadp.__all__} <= set(dir(eadp))\n"
        "assert 'transformers' not in sys.modules\n"
        "assert callable(eadp.attach)\n"
        "others = {name for name in dir(eadp) if name[0] != '_'} - set(eadp.__all__)\n"
        "assert all(f'eadp.{name}' in sys.modules for name in others), others\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_all_names_exist() -> None:
    assert [name for name in eadp.__all__ if not hasattr(eadp, name)] == []
    with pytest.raises(AttributeError, match="no attribute 'atach'"):
        eadp.atach  # noqa: B018


def test_methods_are_looked_up_by_name() -> None:
    assert eadp.get_method("cdpruner", keep=64) == eadp.CDPruner(keep=64)
    assert eadp.get_method("none") == eadp.NoPruning()
    with pytest.raises(ValueError, match=r"unknown method 'edap'; known: cdpruner, .*eadp"):
        eadp.get_method("edap", keep=5)


def test_a_registered_method_is_found() -> None:
    cls = define()
    assert "first" not in eadp.list_methods()
    assert eadp.register_method(cls) is cls
    assert "first" in eadp.list_methods()
    assert eadp.get_method("first", keep=2, start=3) == cls(keep=2, start=3)


def test_a_subclass_is_not_registered_by_itself() -> None:
    define("unregistered")
    assert "unregistered" not in eadp.list_methods()


def test_a_clash_of_names_is_an_error_that_names_both_classes() -> None:
    with pytest.raises(ValueError, match=r"called 'eadp': eadp\.methods\.eadp\.EADP and .*test_registry\.Mine"):
        eadp.register_method(define("eadp", "Mine"))
    assert eadp.get_method("eadp", keep=1) == eadp.EADP(keep=1)


def test_the_same_definition_may_be_run_again() -> None:
    """Notebooks do so."""
    eadp.register_method(define())
    again = eadp.register_method(define())
    assert eadp.methods.get_method_class("first") is again


def test_what_is_no_method_cannot_be_registered() -> None:
    with pytest.raises(TypeError, match="a subclass of BeforeMethod or InsideMethod"):
        eadp.register_method(int)  # type: ignore[type-var]
    with pytest.raises(TypeError, match=r"BeforeMethod does not implement select"):
        eadp.register_method(eadp.BeforeMethod)
    nameless = define()
    del nameless.name
    with pytest.raises(TypeError, match="First needs a class variable name"):
        eadp.register_method(nameless)


def test_a_method_must_be_a_dataclass() -> None:
    class Forgotten(define()):  # type: ignore[misc]
        power: float = 2.0
        kind: ClassVar[str] = "none"

    with pytest.raises(
        TypeError, match=r"^power of .*Forgotten would not be a setting: write @dataclass\(frozen=True\)"
    ):
        eadp.register_method(Forgotten)


def test_other_packages_offer_classes_and_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    loads = offer(monkeypatch, first=define(), module=ModuleType("module"))
    assert loads == []
    assert "first" in eadp.list_methods()
    assert eadp.get_method("first", keep=2).name == "first"
    assert loads == ["first", "module"]


def test_an_offered_method_must_not_clash(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, eadp=define("eadp", "Other"))
    for _ in range(2):
        with pytest.raises(ValueError, match="two methods are called 'eadp'"):
            eadp.list_methods()


def test_an_offered_method_that_cannot_be_loaded_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, broken=ImportError("no module named torchvision"))
    with pytest.raises(RuntimeError, match="the method package:broken, which cannot be loaded: no module named"):
        eadp.get_method("eadp", keep=1)


def test_the_registry_is_restored() -> None:
    with base.restored_registry():
        eadp.register_method(define())
        assert "first" in eadp.list_methods()
    assert "first" not in eadp.list_methods()
