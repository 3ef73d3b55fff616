"""Converted model -> the file of torch.export (.pt2): the QDQ graph with its numbers, for Inductor and AOTInductor."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from fxquant.errors import ConfigError
from fxquant.export.exported import call_of, export_program
from fxquant.export.onnx.failure import failure, quiet
from fxquant.export.onnx.signature import bind, parameters_of
from fxquant.export.open_sizes import DynamicShapes
from fxquant.export.reference import reference_of
from fxquant.export.zero_points import write_zero_points
from fxquant.files import replacing


def export_pt2(
    model: nn.Module,
    path: str | os.PathLike[str],
    example_inputs: object,
    *,
    example_kwargs: Mapping[str, object] | None = None,
    dynamic_batch: bool = False,
    dynamic_shapes: DynamicShapes | None = None,
) -> Path:
    """Write a converted model with torch.export.save; `torch.export.load(path).module()` is bit-equal to the reference.

    That is called as the example is, with the same arguments by position and by name. A process that loads it imports
    fxquant, or torch.ao, first: the quantize ops are registered there. `dynamic_batch` and `dynamic_shapes` leave sizes
    open, as in `export_onnx`.

    Example:
        >>> made = fq.export_pt2(fq.quantize(model, loader), "net.pt2", loader[0])
    """
    file = Path(path)
    if not file.parent.is_dir() or file.is_dir():
        reason = "it is a directory" if file.is_dir() else f"there is no directory {str(file.parent)!r}"
        raise ConfigError(f"export_pt2 cannot write {str(file)!r}: {reason}.")
    tree = reference_of(model, "export_pt2")
    example = call_of(tree, example_inputs, example_kwargs, "export_pt2")
    write_zero_points(tree)
    bind(parameters_of(tree), *example)  # or what does not fit is said
    program = export_program(tree, example, "export_pt2", dynamic_batch=dynamic_batch, dynamic_shapes=dynamic_shapes)
    stream = io.BytesIO()  # torch has errors of its own for a full disk
    try:
        with quiet():
            torch.export.save(program, stream)
    except (RuntimeError, ValueError, TypeError) as error:
        raise failure("export_pt2", error, tree) from error
    with replacing(file, ConfigError) as part:
        part.write_bytes(stream.getbuffer())
    return file
