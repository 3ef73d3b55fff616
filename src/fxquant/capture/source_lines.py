"""Where things come from: the modules around a node, and the line of the user's code.

`set_origins` replaces what torch left in `node.meta` (module stacks, stack traces, fake tensors) by two plain values,
`scope` and `where`. `locate` finds the user's line, module and class behind an exception.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Iterator, Mapping
from types import FrameType, TracebackType

import torch
from torch import fx, nn

from fxquant.errors import Reason
from fxquant.graph.encode import META_KEYS
from fxquant.graph.paths import class_name, find_module

# frames of these packages are machinery, not the user's code
_OURS = (os.path.dirname(torch.__file__) + os.sep, os.path.dirname(os.path.dirname(__file__)) + os.sep)
_TRACE = fx.Tracer.trace.__code__  # what calls the model; who asked for that is above it
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')

_LONG = 400  # characters of a message: torch may list every signature of an op

Scope = tuple[tuple[str, str], ...]


def set_origins(graph: fx.Graph, root: nn.Module) -> None:
    """Leave only `META_KEYS` in the nodes' meta: `scope` and `where` from what torch recorded, and what is ours."""
    paths = {id(module): path for path, module in root.named_modules()}
    for node in graph.nodes:
        meta = {key: node.meta[key] for key in META_KEYS if key in node.meta}
        meta["scope"] = _scope(node.meta.get("nn_module_stack") or {}, root, paths)
        meta["where"] = _where(node.stack_trace) if node.stack_trace else meta.get("where", "")
        node.meta = meta


def _scope(stack: Mapping[str, tuple[object, type | str]], root: nn.Module, paths: Mapping[int, str]) -> Scope:
    entries: list[tuple[str, str]] = [("", class_name(type(root)))]
    for path, cls in stack.values():
        path = str(path).split("@")[0].removeprefix("L['self'].")
        name = cls if isinstance(cls, str) else class_name(cls)
        module = find_module(root, path)
        if module is not None:
            # a module at several paths goes by the first; export's string may not be the qualified name
            path, name = paths[id(module)], class_name(type(module))
        elif path.startswith("_empty_nn_module_stack"):
            continue
        if path != entries[-1][0]:
            entries.append((path, name))
    return tuple(entries)


def _where(trace: str) -> str:
    for file, line in reversed(_FRAME.findall(trace)):
        if is_users(file):
            return f"{file}:{line}"
    return ""


def users_line() -> str:
    """Return the line of the user's code that is traced: "file.py:12", or "" inside of torch's own modules."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not _TRACE:
        if is_users(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


@functools.lru_cache(maxsize=4096)
def is_users(file: str) -> bool:
    """Tell whether a source file is neither torch's nor ours."""
    return not file.startswith((*_OURS, "<", "torch/")) and "importlib" not in file


def locate(error: BaseException, root: nn.Module) -> tuple[str, str]:
    """("file.py:12 in forward of module 'x.y' (Class)", "x.y") behind an exception.

    Where no line is known it is that of the root's forward.
    """
    line, module, path = "", "", ""
    for call, owner, at in calls_of(error, root):
        code = call.tb_frame.f_code
        if is_users(code.co_filename):
            line = f"{code.co_filename}:{call.tb_lineno} in {code.co_name}"
            if owner is not None:
                path, name = at, type(owner).__name__
                module = f" of module {path!r} ({name})" if path else f" of {name}"
    return line + module if line else forward_line(root), path


def calls_of(error: BaseException, root: nn.Module) -> Iterator[tuple[TracebackType, nn.Module | None, str]]:
    """Yield the calls that an exception went through, outermost first, each with its module of the root, and its path.

    A call that is no method of such a module comes with None and an empty path.
    """
    paths = {id(module): path for path, module in root.named_modules()}
    call = first = error.__traceback__
    while call is not None:
        # the first is the caller of ours that holds the error: a frame keeps what is read of its locals
        owner = call.tb_frame.f_locals.get("self") if call is not first else None
        known = id(owner) in paths
        yield call, owner if known else None, paths[id(owner)] if known else ""
        call = call.tb_next


def forward_line(root: nn.Module) -> str:
    """Tell where the model's own forward begins; an empty string if that is not the user's code."""
    code = getattr(type(root).forward, "__code__", None)
    if code is None or not is_users(code.co_filename):
        return ""
    return f"{code.co_filename}:{code.co_firstlineno} in {code.co_name}"


def reason_of(error: BaseException) -> Reason:
    """Say why an exception was raised: what it brings along, or its message."""
    why = getattr(error, "why", None)
    return why if isinstance(why, Reason) else Reason(reason(error))


def reason(error: BaseException) -> str:
    """Give the first lines of an exception's message, on one line."""
    return _short(str(error)) or type(error).__name__


def reason_in_graph(error: BaseException) -> str:
    """Return the same, without what torch.fx adds about the graph that was running."""
    return _short(str(error).partition("While executing %")[0]) or type(error).__name__


def _short(message: str) -> str:
    text = " ".join(message.split()).partition(", but expected one of: *")[0]  # torch lists all forms of an op
    return text if len(text) < _LONG else f"{text[:_LONG]} ..."
