"""`wrap`: the body of a function, a method or a module class stays as written, as one call in the graph.

    @fq.wrap, @fq.wrap()                     a function, or a method of a module
    fq.wrap("package.module.function")       the same for code that is not ours to edit
    @fq.wrap class Head(nn.Module): ...      a module class: its forward

The body runs as Python, so branches on values and on `self.training` survive. What is wrapped is marked on itself;
there is no list of wrapped things. In a trace, a wrapped function finds the tracer through its arguments: a proxy, or a
module that is being traced (`intercepting` puts the tracer into the clone's modules for as long as it lasts).
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast, overload

from torch import fx, nn
from torch.utils import _pytree as pytree

from fxquant.capture.symbolic.given import Given
from fxquant.errors import ConfigError
from fxquant.graph.notes import WRAPPED

_INTERCEPT = "_fxquant_intercept"

# what to do with a call of a wrapped function: (function, args, kwargs) -> result
Intercept = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
_T = TypeVar("_T", bound=Callable[..., Any])


@overload
def wrap(target: None = None) -> Callable[[_T], _T]: ...
@overload
def wrap(target: str) -> Callable[..., object]: ...
@overload
def wrap(target: _T) -> _T: ...


def wrap(target: object = None) -> object:
    """Leave the body of a function, method or module class as written: one call in a captured graph.

    Modules that are called inside still take qconfigs and are quantized. As a decorator, with or without parentheses,
    or with a dotted name.

    Example:
        >>> @fq.wrap
        ... def with_a_branch(x):
        ...     return x if x.sum() > 0 else -x
    """
    if target is None:
        return wrap
    if isinstance(target, str):
        return _wrap_named(target)
    if isinstance(target, staticmethod):
        return staticmethod(wrap(target.__func__))
    if isinstance(target, type):
        if not issubclass(target, nn.Module):
            raise ConfigError(f"wrap({target.__name__}): only module classes can be wrapped; wrap its methods instead.")
        setattr(target, WRAPPED, True)
        return target
    if not inspect.isroutine(target) or isinstance(target, classmethod):
        raise ConfigError(f"wrap({target!r}): expected a function, a method, a module class or a dotted name.")
    return target if hasattr(target, WRAPPED) else _wrap_function(target)


def is_wrapped(module: nn.Module) -> bool:
    """Tell whether a module's class is wrapped."""
    return hasattr(type(module), WRAPPED)


def has_wrapped_method(module: nn.Module) -> bool:
    """Tell whether the module's class, or one that it derives from, has a wrapped method."""
    members = (member for cls in type(module).__mro__ for member in vars(cls).values())
    return any(hasattr(getattr(member, "__func__", member), WRAPPED) for member in members)


def _wrap_function(function: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(function)
    def wrapped(*args: object, **kwargs: object) -> object:
        intercept = _find_intercept(args, kwargs)
        if intercept is not None:
            return intercept(wrapped, args, kwargs)
        return function(*args, **kwargs)

    setattr(wrapped, WRAPPED, True)
    return wrapped


def _find_intercept(args: tuple[object, ...], kwargs: dict[str, object]) -> Intercept | None:
    owner = args[0] if args else None
    if isinstance(owner, nn.Module):
        return cast("Intercept | None", owner.__dict__.get(_INTERCEPT))
    for leaf in pytree.tree_leaves((args, kwargs)):
        proxy = leaf.proxy if isinstance(leaf, Given) else leaf
        if isinstance(proxy, fx.Proxy):
            create = proxy.tracer.create_proxy
            return lambda function, given, named: create("call_function", function, given, named)
    return None


@contextlib.contextmanager
def intercepting(tree: nn.Module, intercept: Intercept) -> Iterator[None]:
    """While it lasts, wrapped functions that are given a module of the tree (methods, mostly) go to `intercept`."""
    modules = list(tree.modules())
    for module in modules:
        module.__dict__[_INTERCEPT] = intercept
    try:
        yield
    finally:
        for module in modules:
            module.__dict__.pop(_INTERCEPT, None)


def _wrap_named(name: str) -> object:
    """Wrap what a dotted name leads to, and put it wherever loaded modules hold it (`from x import f`)."""
    holder, attribute, original = _resolve(name)
    new = wrap(original)
    if new is not original:
        setattr(holder, attribute, new)
        for module in list(sys.modules.values()):
            for key, value in list(getattr(module, "__dict__", {}).items()):
                if value is original and not key.startswith("__"):
                    setattr(module, key, new)
    return new


def _resolve(name: str) -> tuple[object, str, Any]:
    parts = name.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        try:
            holder: Any = importlib.import_module(".".join(parts[:cut]))
        except ImportError:
            continue
        for part in parts[cut:-1]:
            holder = getattr(holder, part, None)
        found = inspect.getattr_static(holder, parts[-1], None)
        if found is None:
            raise ConfigError(f"wrap({name!r}): {'.'.join(parts[:-1])!r} has no {parts[-1]!r}.")
        return holder, parts[-1], found
    raise ConfigError(f"wrap({name!r}): no such module. Give the full name, such as 'package.module.function'.")
