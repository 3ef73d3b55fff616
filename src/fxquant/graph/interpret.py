"""Run a graph node by node, as the code of `forward` would."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import fx
from torch.fx.immutable_collections import immutable_dict, immutable_list
from torch.fx.node import Argument, Target


class PlainInterpreter(fx.Interpreter):
    """Runs a graph node by node, as the code of `forward` would."""

    def call_function(self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, object]) -> object:
        """Lists and dicts as the code of `forward` has them, since the user's own functions may write to them."""
        return super().call_function(target, plain(args), {name: plain(value) for name, value in kwargs.items()})

    def call_module(self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, object]) -> object:
        return super().call_module(target, plain(args), {name: plain(value) for name, value in kwargs.items()})


def plain(value: Any) -> Any:
    """Return the arguments of a node with lists and dicts of Python in the place of those that fx fixes."""
    if isinstance(value, immutable_list):
        return [plain(item) for item in value]
    if isinstance(value, immutable_dict):
        return {key: plain(item) for key, item in value.items()}
    return tuple(plain(item) for item in value) if type(value) is tuple else value


def interpret(interpreter: fx.Interpreter, args: tuple[object, ...], kwargs: Mapping[str, object]) -> object:
    """Run a graph by an interpreter of it, called as its module is."""
    graph = interpreter.graph
    codegen = graph._codegen
    if isinstance(codegen, fx.graph._PyTreeCodeGen):
        flat = codegen.process_inputs(*args, **kwargs)
        return codegen.process_outputs(interpreter.run(*flat, enable_io_processing=False))
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    if not kwargs:
        return interpreter.run(*args)
    given = dict(zip((node.target for node in placeholders), args, strict=False)) | dict(kwargs)
    # an argument left out between two given ones stands at its default
    return interpreter.run(*[given[node.target] if node.target in given else node.args[0] for node in placeholders])
