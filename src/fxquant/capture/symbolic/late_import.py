"""Import a module of torch as it is without what a trace has put into torch's namespace.

While code is traced, some functions of torch are others, which see proxies. A package that is imported meanwhile, by
the user's code or by torch, may keep them for good: TorchDynamo keeps tables of torch's functions.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from types import ModuleType


@contextlib.contextmanager
def importing_without(patched: Callable[[], AbstractContextManager[object]], name: str) -> Iterator[None]:
    """Patch while it lasts; if a package of this name is imported meanwhile, its code runs unpatched."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(patched())

        @contextlib.contextmanager
        def unpatched() -> Iterator[None]:
            stack.close()
            try:
                yield
            finally:
                stack.enter_context(patched())

        finder = _Finder(name, unpatched)
        sys.meta_path.insert(0, finder)
        try:
            yield
        finally:
            sys.meta_path.remove(finder)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, name: str, around: Callable[[], AbstractContextManager[None]]) -> None:
        self.name, self.around = name, around

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self.around)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, inner: importlib.abc.Loader, around: Callable[[], AbstractContextManager[None]]) -> None:
        self.inner, self.around = inner, around

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self.inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self.inner
        if module.__spec__ is not None:
            module.__spec__.loader = self.inner
        with self.around():
            self.inner.exec_module(module)
