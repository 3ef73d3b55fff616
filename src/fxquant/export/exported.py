"""A reference model as an exported program: the graph of ATen and quantize / dequantize ops that formats start from."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fxquant.capture.run_untraced import apart, run
from fxquant.capture.source_lines import reason_in_graph
from fxquant.errors import ConfigError
from fxquant.export.onnx.failure import failure, quiet
from fxquant.export.open_sizes import Call, DynamicShapes, open_sizes
from fxquant.graph.one_at_a_time import CAPTURING
from fxquant.graph.region import regions, take_uncovered
from fxquant.graph.tree import is_value


def call_of(model: nn.Module, inputs: object, kwargs: Mapping[str, object] | None, caller: str) -> Call:
    """(args, kwargs) of example inputs: a tuple, a tensor, or a dict, of keyword arguments or the one argument."""
    if isinstance(inputs, Tensor):
        inputs = (inputs,)
    if isinstance(inputs, Mapping) and kwargs is None:
        parameters = inspect.signature(model.forward).parameters.values()
        names = [each.name for each in parameters if each.kind is not each.VAR_KEYWORD]
        one = len(names) == len(parameters) and is_value(inputs, names)
        inputs, kwargs = ((inputs,), {}) if one else ((), dict(inputs))
    if not isinstance(inputs, (tuple, list)) or not (inputs or kwargs):
        raise ConfigError(
            f"{caller} needs example inputs: a tuple of positional arguments, a tensor, or a dict of keyword arguments."
        )
    return tuple(inputs), dict(kwargs or {})


def export_program(
    tree: nn.Module,
    example: Call,
    caller: str,
    *,
    dynamic_batch: bool = False,
    dynamic_shapes: DynamicShapes | None = None,
) -> torch.export.ExportedProgram:
    """torch.export of a model, with its failures in the user's words. What is dynamic stays open (open_sizes.py)."""
    opened, shapes = open_sizes(tree, example, caller, dynamic_batch=dynamic_batch, dynamic_shapes=dynamic_shapes)
    args, kwargs = apart(opened)
    _uncovered(tree)
    try:
        with CAPTURING, torch.no_grad(), quiet():
            program = torch.export.export(tree, args, kwargs, dynamic_shapes=shapes)
    except Exception as error:  # torch.export raises many kinds, for the user's shapes as for its own limits
        hint = "Its batch size may be fixed; dynamic_batch=False keeps that of the example. " if dynamic_batch else ""
        if dynamic_shapes is not None:
            hint = "A size of dynamic_shapes may be fixed by the model; leave that out. "
        _refuse_example(tree, *apart(example), caller)
        raise failure(caller, error, tree, hint=hint) from error
    _refuse_float(tree, example, caller)
    return program


def _refuse_float(tree: nn.Module, example: Call, caller: str) -> None:
    """Raise if torch.export went another way through code than a call does, to calls that no graph covers.

    The file would have those parts in float. What is float in a call, too, is so in the file.
    """
    exported = _uncovered(tree)
    if not exported:
        return
    args, kwargs = example
    run(tree, args, kwargs)
    called = _uncovered(tree)
    path = next((path for path in exported if path not in called), None)
    if path is not None:
        raise ConfigError(
            f"{caller}: {path!r} would be in float: code around it calls it otherwise when torch exports it. "
            f"{re.split('[;.] ', exported[path])[0]}. Quantize the model with method='export', which follows that way, "
            "or leave out the argument that the code depends on."
        )


def _uncovered(tree: nn.Module) -> dict[str, str]:
    """Return by path why calls of regions ran in float since the last look."""
    return {path: why for path, region in regions(tree) if (why := take_uncovered(region))}


def _refuse_example(tree: nn.Module, args: tuple[object, ...], kwargs: dict[str, object], caller: str) -> None:
    """Raise if the model does not run on its example inputs at all: then it is not the export that fails."""
    try:
        with torch.no_grad():
            tree(*args, **kwargs)
    except Exception as error:
        why = reason_in_graph(error).rstrip(".")
        raise ConfigError(f"{caller}: the model itself fails on the example inputs: {why}. Pass others.") from error
