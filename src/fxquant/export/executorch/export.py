"""Converted model -> ExecuTorch program (.pte), its int8 kernels those of XNNPACK.

    reference graph -> fit_xnnpack -> torch.export -> partition and lower -> file

The target "xnnpack" has what the kernels take; a model for another target is written, too, and the account says what
stayed outside of the delegate.
"""

from __future__ import annotations

import importlib.util
import logging
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from fxquant.errors import ConfigError
from fxquant.export.executorch.fit_xnnpack import fit_xnnpack
from fxquant.export.exported import call_of, export_program
from fxquant.export.onnx.failure import failure, quiet
from fxquant.export.onnx.signature import bind, parameters_of
from fxquant.export.reference import reference_of
from fxquant.files import replacing
from fxquant.graph.region import regions

if TYPE_CHECKING:
    from executorch.exir import ExecutorchProgramManager


_CALLER = "export_executorch"
_PLUMBING = ("getitem", "executorch_call_delegate")


@dataclass(frozen=True, kw_only=True, slots=True)
class ExecuTorchFile:
    """What was written: how many delegates run it, and which ops stayed outside of them, with their numbers."""

    path: Path
    delegates: int
    outside: Mapping[str, int]

    def __str__(self) -> str:
        count = f"{self.delegates} delegate{'' if self.delegates == 1 else 's'}"
        rest = ", ".join(f"{name} ({times})" for name, times in self.outside.items()) or "nothing"
        text = f"{self.path}: {count} of XNNPACK, outside of {'it' if self.delegates == 1 else 'them'}: {rest}."
        if self.delegates > 1:
            text += " Each change between them costs time: prepare for target='xnnpack', or see what is between."
        return text


def export_executorch(
    model: nn.Module,
    path: str | os.PathLike[str],
    example_inputs: object,
    *,
    example_kwargs: Mapping[str, object] | None = None,
) -> ExecuTorchFile:
    """Write a converted model as an ExecuTorch program for XNNPACK, for the shapes of `example_inputs`.

    Prepare it for the target "xnnpack". Needs `pip install 'fxquant[executorch]'`. See docs/export.md.

    Example:
        >>> quantized = fq.quantize(model, loader, target="xnnpack")
        >>> made = fq.export_executorch(quantized, "net.pte", loader[0])  # needs fxquant[executorch]
    """
    file = Path(path)
    if not file.parent.is_dir() or file.is_dir():
        reason = "it is a directory" if file.is_dir() else f"there is no directory {str(file.parent)!r}"
        raise ConfigError(f"{_CALLER} cannot write {str(file)!r}: {reason}.")
    if importlib.util.find_spec("executorch") is None:
        raise ConfigError(f"{_CALLER} needs executorch. Install with: pip install 'fxquant[executorch]'")
    tree = reference_of(model, _CALLER)
    _refuse_unsigned(tree)
    fit_xnnpack(tree)
    example = bind(parameters_of(tree), *call_of(tree, example_inputs, example_kwargs, _CALLER))
    program = export_program(tree, example, _CALLER)
    try:
        with quiet(), _own_logging():
            counts, written = _lower(program)
    except Exception as error:  # executorch raises many kinds, asserts without a text among them
        raise failure(_CALLER, error, tree) from error
    with replacing(file, ConfigError) as part:
        part.write_bytes(written.buffer)
    delegates = counts["executorch_call_delegate"]
    outside = {name: count for name, count in sorted(counts.items()) if name not in _PLUMBING}
    return ExecuTorchFile(path=file, delegates=delegates, outside=outside)


def _refuse_unsigned(tree: nn.Module) -> None:
    """Raise for unsigned activations, which lower, or are left outside without a kernel, and then fail at load."""
    for _, region in regions(tree):
        for node in region.graph.nodes:
            if torch.uint8 in node.args:
                raise ConfigError(
                    f"{_CALLER}: XNNPACK has no kernels on unsigned integers, and {str(node.args[0])!r} is in uint8. "
                    "Quantize the model for target='xnnpack'."
                )


def _lower(program: torch.export.ExportedProgram) -> tuple[Counter[str], ExecutorchProgramManager]:
    """Tell how often each op is called once delegates stand for what they run, and the program."""
    # the forms of QDQ ops that stay outside of delegates: without them the first export in a process fails
    import executorch.kernels.quantized  # noqa: F401
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    edge = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
    nodes = edge.exported_program().graph.nodes
    counts = Counter(_name(node.target) for node in nodes if node.op == "call_function")
    return counts, edge.to_executorch()


@contextmanager
def _own_logging() -> Iterator[None]:
    """Executorch calls logging.basicConfig; what the process logs stays as the user set it."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


def _name(target: object) -> str:
    return str(getattr(target, "__name__", target)).removeprefix("aten.").removesuffix(".default")
