"""Run a function once another package is imported, without an import of that package here."""

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Optional


def call_after_import(name: str, function: Callable[[], object]) -> None:
    """Call `function` now if the module `name` is imported, or else at the end of its first import.

    A finder at the head of `sys.meta_path` lets the other finders find the module. It removes itself then.
    """
    if sys.modules.get(name) is None:
        sys.meta_path.insert(0, _Finder(name, function))
    else:
        function()


class _Finder:
    """Find one module by the other finders, with a loader that calls a function after the module's own code."""

    def __init__(self, name: str, function: Callable[[], object]) -> None:
        self.name, self.function = name, function

    def find_spec(
        self, name: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        if name != self.name:
            return None
        others = sys.meta_path[sys.meta_path.index(self) + 1 :]  # earlier finders have returned None
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if spec is not None and hasattr(spec.loader, 'exec_module'):
            spec.loader = _Loader(spec.loader, self)  # type: ignore[assignment]
        return spec


class _Loader:
    """A module's own loader, and a function after it. The module keeps its own loader alone."""

    def __init__(self, loader: Any, finder: _Finder) -> None:
        self.loader, self.finder = loader, finder

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self.loader
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        if self.finder in sys.meta_path:
            sys.meta_path.remove(self.finder)
            self.finder.function()
