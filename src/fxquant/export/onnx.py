"""Converted model -> ONNX with QuantizeLinear / DequantizeLinear and integer initializers.

    reference graph -> torch.export -> torch.onnx (translate.py) -> fold_weights -> quantize_biases

The result is standard ONNX: weights are INT8 (4-bit ones in blocks are INT4) and dequantized per channel, activations
go through a pair per tensor, biases between int8 tensors are INT32. Runtimes fuse pairs and ops into int8 kernels.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.export.graph_signature import ConstantArgument
from torch.utils._pytree import tree_leaves, tree_map, tree_structure

from fxquant.core import compat
from fxquant.core.files import replacing, sync
from fxquant.core.graph import regions
from fxquant.errors import ConfigError
from fxquant.export.failure import failure, quiet
from fxquant.export.reference import reference_of
from fxquant.export.signature import Signature, bind, parameters_of, signature_of

if TYPE_CHECKING:
    import onnx_ir as ir

_OPSET, _OPSET_OF_BLOCKS_AND_16_BITS = 20, 21
_NEEDED = ("onnx", "onnxscript", "onnx_ir")
_LARGEST = 2**31 - 2**20  # bytes of a protobuf file; beyond that, tensors go to a file of their own


def export_onnx(
    model: nn.Module,
    path: str | os.PathLike[str],
    example_inputs: Any,
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    dynamic_batch: bool = False,
) -> Path:
    """Write a converted model as ONNX with int8 weights and QuantizeLinear / DequantizeLinear pairs.

    `example_inputs` is a tuple of positional arguments, a tensor, or a dict of keyword arguments. `dynamic_batch`
    leaves the batch open: dim 0 of the first tensor, and of every other input of that size.
    """
    file = Path(path)
    if not file.parent.is_dir():
        raise ConfigError(f"export_onnx cannot write {str(file)!r}: there is no directory {str(file.parent)!r}.")
    if file.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK):
        reason = "it is a directory" if file.is_dir() else "permission denied"
        raise ConfigError(f"export_onnx cannot write {str(file)!r}: {reason}.")
    graph, _ = to_onnx(model, example_inputs, example_kwargs, dynamic_batch=dynamic_batch, caller="export_onnx")
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
    return file


def _data_beside(folder: Path, name: str) -> str:
    """A name for the tensors of a large model that no file has: the model that is there goes on having its own."""
    return f"{name}.data" if not (folder / f"{name}.data").exists() else f"{name}.{secrets.token_hex(4)}.data"


def _drop_old_data(file: Path, data: str | None) -> None:
    """Remove the tensors of the model that was there before."""
    for old in (file.with_name(f"{file.name}.data"), *file.parent.glob(f"{file.name}.????????.data")):
        if data is not None and old.name != data:
            old.unlink(missing_ok=True)


def to_onnx(
    model: nn.Module,
    example_inputs: Any,
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_batch: bool,
    caller: str,
    gemm: bool = True,
) -> tuple[ir.Model, Signature]:
    """The ONNX model, and how to call it like `model`. `caller` is named in errors.

    `gemm` brings int8 linears with a bias to two dimensions, with reshapes around them, where others are MatMul and
    Add: ONNX Runtime has an int8 kernel for that, and none for the other where the batch is fixed.
    """
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"{caller} needs {', '.join(missing)}. Install with: pip install fxquant[onnx]")
    tree = reference_of(model, caller)
    parameters = parameters_of(tree)
    example = bind(parameters, *_examples(example_inputs, example_kwargs, caller))
    program = _export(tree, example, dynamic_batch, caller)
    _refuse_changes(program, caller)
    signature = signature_of(parameters, example, program)
    _drop_constants(program)
    onnx_model = _translate(program, tree, gemm, caller)
    if dynamic_batch:
        _name_batch(onnx_model)
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


def _examples(inputs: Any, kwargs: Mapping[str, Any] | None, caller: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(inputs, Tensor):
        inputs = (inputs,)
    if isinstance(inputs, Mapping) and kwargs is None:
        inputs, kwargs = (), inputs
    if not isinstance(inputs, (tuple, list)) or not (inputs or kwargs):
        raise ConfigError(
            f"{caller} needs example inputs: a tuple of positional arguments, a tensor, or a dict of keyword arguments."
        )
    return tuple(inputs), dict(kwargs or {})


def _export(tree: nn.Module, example: Any, dynamic_batch: bool, caller: str) -> torch.export.ExportedProgram:
    shapes = None
    if dynamic_batch:
        first = next((leaf for leaf in tree_leaves(example) if isinstance(leaf, Tensor) and leaf.dim()), None)
        if first is None:
            raise ConfigError(f"{caller}(dynamic_batch=True): no example input has a batch dimension.")
        example, shapes = _open_batch(tree, example, first.shape[0])
    args, kwargs = example
    try:
        with torch.no_grad(), quiet():
            return torch.export.export(tree, args, kwargs, dynamic_shapes=shapes)
    except Exception as error:  # torch.export raises many kinds, for the user's shapes as for its own limits
        hint = "Its batch size may be fixed; dynamic_batch=False keeps that of the example. " if dynamic_batch else ""
        raise failure(caller, error, tree, hint=hint) from error


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


def _is_written(slot: Any) -> bool:
    return slot.alias_info is not None and slot.alias_info.is_write


def _root(node: Any) -> Any:
    """What a node is a view of."""
    while node.op == "call_function":
        schema = getattr(node.target, "_schema", None)
        if schema is None or not schema.returns or schema.returns[0].alias_info is None:
            break
        node = node.args[0]
    return node


def _open_batch(tree: nn.Module, example: Any, batch: int) -> tuple[Any, dict[str, Any]]:
    """The example with a batch above 1, which torch.export would fix, and the open dimension of each tensor."""
    dim = torch.export.Dim("batch")

    def is_batched(leaf: Any) -> bool:
        return isinstance(leaf, Tensor) and leaf.dim() > 0 and leaf.shape[0] == batch

    shapes = tree_map(lambda leaf: {0: dim} if is_batched(leaf) else None, example)
    if batch == 1:
        example = tree_map(lambda leaf: torch.cat([leaf, leaf]) if is_batched(leaf) else leaf, example)
    return example, dict(parameters_of(tree).bind(*shapes[0], **shapes[1]).arguments)


def _translate(program: torch.export.ExportedProgram, tree: nn.Module, gemm: bool, caller: str) -> ir.Model:
    from onnx_ir.passes import common

    from fxquant.export.fold_weights import fold_weights
    from fxquant.export.int32_bias import quantize_biases
    from fxquant.export.loop_constants import move_into_loops
    from fxquant.export.translate import translations

    try:
        with quiet():
            exported = torch.onnx.export(
                program,
                dynamo=True,
                verbose=False,
                opset_version=_opset(tree),
                custom_translation_table=translations(gemm=gemm),
            )
    except torch.onnx.OnnxExporterError as error:
        raise failure(caller, error, tree) from error
    assert exported is not None
    model = exported.model
    _correct_types(model)
    move_into_loops(model.graph)
    for graph in (model.graph, *model.graph.subgraphs()):
        fold_weights(graph)
        quantize_biases(graph)
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


def _opset(tree: nn.Module) -> int:
    for _, region in regions(tree):
        for node in region.graph.nodes:
            if node.target is compat.DEQUANTIZE_GROUP or torch.int16 in node.args or torch.uint16 in node.args:
                return _OPSET_OF_BLOCKS_AND_16_BITS
    return _OPSET


def _name_batch(model: ir.Model) -> None:
    import onnx_ir as ir

    sizes = [value.shape[0] for value in model.graph.inputs if value.shape]
    symbols = {str(size) for size in sizes if not isinstance(size, int)}
    values = [*model.graph.inputs, *(value for node in model.graph for value in node.outputs)]
    for value in values:
        if value.shape is not None and not value.shape.frozen:
            for index, size in enumerate(value.shape):
                if not isinstance(size, int) and str(size) in symbols:
                    value.shape[index] = ir.SymbolicDim("batch")
