"""Converted model -> ONNX with QuantizeLinear / DequantizeLinear and integer initializers.

    reference graph -> torch.export -> torch.onnx (translate.py) -> fold_weights -> quantize_biases

The result is standard ONNX: weights are INT8 (4-bit ones in blocks are INT4) and dequantized per channel, activations
go through a pair per tensor, biases between int8 tensors are INT32. Runtimes fuse pairs and ops into int8 kernels.
"""

from __future__ import annotations

import importlib.util
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import fx, nn
from torch.export.graph_signature import ConstantArgument
from torch.utils._pytree import tree_structure

from fxquant.errors import ConfigError
from fxquant.export.exported import call_of, export_program
from fxquant.export.onnx.failure import failure, quiet
from fxquant.export.onnx.own_bias import keep_own_biases
from fxquant.export.onnx.regions import export_regions, is_whole
from fxquant.export.onnx.signature import Signature, bind, parameters_of, signature_of
from fxquant.export.open_sizes import DynamicShapes
from fxquant.export.reference import reference_of
from fxquant.files import replacing, sync
from fxquant.graph import torch_compat
from fxquant.graph.region import regions

if TYPE_CHECKING:
    import onnx_ir as ir

_OPSET, _OPSET_OF_BLOCKS_AND_16_BITS = 20, 21
_LOWEST, _HIGHEST = 18, 24
_NEEDED = ("onnx", "onnxscript", "onnx_ir")
_LARGEST = 2**31 - 2**20  # bytes of a protobuf file; beyond that, tensors go to a file of their own


def export_onnx(
    model: nn.Module,
    path: str | os.PathLike[str],
    example_inputs: object,
    *,
    example_kwargs: Mapping[str, object] | None = None,
    dynamic_batch: bool = False,
    dynamic_shapes: DynamicShapes | None = None,
    opset: int | None = None,
    metadata: Mapping[str, str] | None = None,
) -> Path:
    """Write a converted model as ONNX with int8 weights and QuantizeLinear / DequantizeLinear pairs.

    `example_inputs` is a tuple of positional arguments, a tensor, or a dict of keyword arguments; `example_kwargs` are
    more of the latter. `metadata` are texts by name that go into the file. `dynamic_batch`
    leaves the batch open: dim 0 of the first tensor, and of every other input of that size. `dynamic_shapes` names
    other open sizes by argument and axis: `{"image": {2: "height", 3: "width"}}`. `opset` is 18 or above; without it,
    20, or 21 for what begins there. A model that is not one graph is written to a directory: see docs/export.md.

    Example:
        >>> made = fq.export_onnx(fq.quantize(model, loader), "net.onnx", loader[0])  # needs fxquant[onnx]
    """
    file = Path(path)

    def make(part: nn.Module, args: object, kwargs: Mapping[str, object] | None) -> ir.Model:
        made, signature = to_onnx(
            *(part, args, kwargs),
            dynamic_batch=dynamic_batch,
            dynamic_shapes=dynamic_shapes,
            opset=opset,
            caller="export_onnx",
        )
        from fxquant.export.onnx.describe import describe

        describe(made, signature, metadata)
        return made

    if not is_whole(model) and not file.suffix and any(True for _ in regions(model)):

        def write(region: nn.Module, place: Path, args: object, kwargs: Mapping[str, object]) -> ir.Model:
            made = make(region, args, kwargs)
            _write(made, place)
            return made

        return export_regions(model, file, call_of(model, example_inputs, example_kwargs, "export_onnx"), write)
    if not file.parent.is_dir():
        raise ConfigError(f"export_onnx cannot write {str(file)!r}: there is no directory {str(file.parent)!r}.")
    if file.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK):
        reason = "it is a directory" if file.is_dir() else "permission denied"
        raise ConfigError(f"export_onnx cannot write {str(file)!r}: {reason}.")
    _write(make(model, example_inputs, example_kwargs), file)
    return file


def _write(graph: ir.Model, file: Path) -> None:
    import onnx_ir as ir

    size = sum(value.const_value.nbytes for value in graph.graph.initializers.values() if value.const_value is not None)
    with replacing(file, ConfigError) as part:
        data = _data_beside(part.parent, Path(os.path.realpath(file)).name) if size > _LARGEST else None
        try:
            ir.save(graph, part, external_data=data)
            if data is not None:
                sync(part.parent / data)
        except BaseException:
            if data is not None:
                (part.parent / data).unlink(missing_ok=True)
            raise
    _drop_old_data(Path(os.path.realpath(file)), data)


def _data_beside(folder: Path, name: str) -> str:
    """Return a name for the tensors of a large model that no file has.

    The model that is there goes on having its own.
    """
    return f"{name}.data" if not (folder / f"{name}.data").exists() else f"{name}.{secrets.token_hex(4)}.data"


def _drop_old_data(file: Path, data: str | None) -> None:
    """Remove the tensors of the model that was there before."""
    for old in (file.with_name(f"{file.name}.data"), *file.parent.glob(f"{file.name}.????????.data")):
        if data is not None and old.name != data:
            old.unlink(missing_ok=True)


def to_onnx(
    model: nn.Module,
    example_inputs: object,
    example_kwargs: Mapping[str, object] | None = None,
    *,
    dynamic_batch: bool,
    caller: str,
    gemm: bool = True,
    dynamic_shapes: DynamicShapes | None = None,
    opset: int | None = None,
) -> tuple[ir.Model, Signature]:
    """Return the ONNX model, and how to call it like `model`. `caller` is named in errors.

    `gemm` brings int8 linears with a bias to two dimensions, with reshapes around them, where others are MatMul and
    Add: ONNX Runtime has an int8 kernel for that, and none for the other where the batch is fixed.
    """
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"{caller} needs {', '.join(missing)}. Install with: pip install 'fxquant[onnx]'")
    tree = reference_of(model, caller)
    wanted = _opset(tree, opset, caller)
    keep_own_biases(tree)
    parameters = parameters_of(tree)
    example = bind(parameters, *call_of(tree, example_inputs, example_kwargs, caller))
    program = export_program(tree, example, caller, dynamic_batch=dynamic_batch, dynamic_shapes=dynamic_shapes)
    _refuse_changes(program, caller)
    signature = signature_of(parameters, example, program)
    _drop_constants(program)
    onnx_model = _translate(program, tree, gemm, wanted, caller)
    if dynamic_batch or dynamic_shapes:
        _name_sizes(onnx_model, dynamic_batch, dynamic_shapes)
    return onnx_model, signature


def _drop_constants(program: torch.export.ExportedProgram) -> None:
    """Outputs that are no tensors (a number, None) are part of the signature; ONNX has no place for them."""
    signature = program.graph_signature
    kept = [not isinstance(spec.arg, ConstantArgument) for spec in signature.output_specs]
    output = next(node for node in program.graph.nodes if node.op == "output")
    results = cast("tuple[Any, ...]", output.args[0])
    output.args = (tuple(result for result, keep in zip(results, kept, strict=True) if keep),)
    signature.output_specs = [spec for spec, keep in zip(signature.output_specs, kept, strict=True) if keep]
    calls = program.module_call_graph[0].signature
    if calls is not None:
        calls.out_spec = tree_structure(tuple(range(sum(kept))))
    program.graph_module.recompile()


def _refuse_changes(program: torch.export.ExportedProgram, caller: str) -> None:
    """Raise if the model writes into its buffers or inputs, which would be lost."""
    names = {spec.arg.name: spec.target or spec.arg.name for spec in program.graph_signature.input_specs}
    for node in program.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if node.op == "call_function" and schema is not None and schema.is_mutable:
            written = [a for a, slot in zip(node.args, schema.arguments, strict=False) if _is_written(slot)]
            changed = [names[root.name] for each in written if (root := _root(each)).name in names]
            if changed:
                raise ConfigError(
                    f"{caller}: the model changes {changed[0]!r} when it is called ({node.target}), and ONNX cannot. "
                    "Use engine='onednn', or leave that out of forward in eval mode."
                )


def _is_written(slot: torch.Argument) -> bool:
    return slot.alias_info is not None and slot.alias_info.is_write


def _root(node: fx.Node) -> fx.Node:
    """Return what a node is a view of."""
    while node.op == "call_function":
        schema = getattr(node.target, "_schema", None)
        if schema is None or not schema.returns or schema.returns[0].alias_info is None:
            break
        source = node.args[0]
        assert isinstance(source, fx.Node)
        node = source
    return node


def _translate(program: torch.export.ExportedProgram, tree: nn.Module, gemm: bool, opset: int, caller: str) -> ir.Model:
    from onnx_ir.passes import common

    from fxquant.export.onnx.channel_scales import move_channel_scales
    from fxquant.export.onnx.fold_pads import fold_pads
    from fxquant.export.onnx.fold_weights import fold_weights
    from fxquant.export.onnx.int32_bias import quantize_biases
    from fxquant.export.onnx.loop_constants import move_into_loops
    from fxquant.export.onnx.own_zero_points import part_zero_points
    from fxquant.export.onnx.pin_inputs import pin_inputs
    from fxquant.export.onnx.to_program import to_program
    from fxquant.export.onnx.translate import translations

    try:
        with quiet():
            model = to_program(program, opset, translations(gemm=gemm)).model
    except torch.onnx.OnnxExporterError as error:
        raise failure(caller, error, tree) from error
    _correct_types(model)
    move_into_loops(model.graph)
    for graph in (model.graph, *model.graph.subgraphs()):
        fold_weights(graph)
        fold_pads(graph)
        move_channel_scales(graph)
        quantize_biases(graph)
        part_zero_points(graph)
    pin_inputs(model.graph)
    common.RemoveUnusedNodesPass()(model)
    common.NameFixPass()(model)
    return model


def _correct_types(model: ir.Model) -> None:
    """Scales found at run time are float64 and of one axis in torch's ops, which is what the exporter noted."""
    import onnx_ir as ir

    for node in model.graph.all_nodes():  # those of loops included
        if node.op_type == "DynamicQuantizeLinear":
            for value, dtype in zip(node.outputs[1:], (ir.DataType.FLOAT, ir.DataType.UINT8), strict=True):
                value.dtype, value.shape = dtype, ir.Shape(())
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            integers = node.outputs[0] if node.op_type == "QuantizeLinear" else node.inputs[0]
            dtypes = (ir.DataType.FLOAT, integers.dtype if integers is not None else None)
            for value, dtype in zip(node.inputs[1:], dtypes, strict=False):
                if value is not None and value.const_value is None and dtype is not None:
                    value.dtype, value.shape = dtype, ir.Shape(())


def _opset(tree: nn.Module, asked: int | None, caller: str) -> int:
    """Return the opset to write: the one asked for, if it has what the model needs."""
    needed = _needed(tree)
    if asked is None:
        return needed
    lowest = _LOWEST if needed == _OPSET else needed
    if not isinstance(asked, int) or not lowest <= asked <= _HIGHEST:
        why = " (16 bits and blocks of weights begin there)" if lowest > _LOWEST else ""
        raise ConfigError(f"{caller}(opset={asked!r}): this model can be written as {lowest}{why} to {_HIGHEST}.")
    return asked


def _needed(tree: nn.Module) -> int:
    for _, region in regions(tree):
        for node in region.graph.nodes:
            if node.target is torch_compat.DEQUANTIZE_GROUP or torch.int16 in node.args or torch.uint16 in node.args:
                return _OPSET_OF_BLOCKS_AND_16_BITS
    return _OPSET


def _name_sizes(model: ir.Model, dynamic_batch: bool, dynamic_shapes: DynamicShapes | None) -> None:
    """Call open sizes what the user calls them."""
    import onnx_ir as ir

    names: dict[str, str] = {}
    for value in model.graph.inputs:
        wanted = (dynamic_shapes or {}).get(value.name or "") or {}
        for axis, size in enumerate(value.shape or ()):
            asked = wanted.get(axis, wanted.get(axis - len(value.shape or ())))
            if not isinstance(size, int) and (asked is not None or (dynamic_batch and axis == 0)):
                names[str(size)] = str(getattr(asked, "__name__", asked or "batch"))
    torchs = re.compile(rf"\b({'|'.join(map(re.escape, names))})\b") if names else None
    for value in [*model.graph.inputs, *(value for node in model.graph for value in node.outputs)]:
        if value.shape is not None and not value.shape.frozen:
            for index, size in enumerate(value.shape):
                if not isinstance(size, int) and torchs is not None and torchs.search(str(size)):
                    own = torchs.sub(lambda found: names[found[0]], str(size))  # also inside of (s73 - 1)//2 + 1
                    value.shape[index] = ir.SymbolicDim(own)
