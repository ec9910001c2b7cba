"""Runs something as soon as a module is imported, by whomever: what belongs to a slow module need not import it."""

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["when_imported"]


def when_imported(name: str, then: Callable[[], None]) -> None:
    """Calls ``then`` once the module of that name is imported: now, if it is already, and otherwise at its end."""
    if name in sys.modules:
        then()
    else:
        sys.meta_path.insert(0, _Watch(name, then))


class _Watch:
    """A finder that finds one module, where the others do, and runs something behind it."""

    def __init__(self, name: str, then: Callable[[], None]):
        self._name, self._then, self._asks = name, then, False

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self._name or self._asks:
            return None
        self._asks = True  # another of our kind asks this one in turn
        try:
            specs = (finder.find_spec(name, path, target) for finder in list(sys.meta_path))
            spec = next(filter(None, specs), None)
        finally:
            self._asks = False
        if spec is not None and spec.loader is not None:
            self._follow(spec.loader)
        return spec

    def _follow(self, loader: Any) -> None:
        run = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self._then()

        loader.exec_module = exec_module
