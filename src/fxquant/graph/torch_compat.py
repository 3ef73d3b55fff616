"""The one place that touches what torch may move: the `quantized_decomposed` ops, and its C++ interpreter.

torch registers them when its (deprecated) quantization package is imported. Where that package is gone, the ops are
registered here with the same schemas, so that converted graphs, torch.onnx and Inductor see one form. fxquant adds
`fxquant::quantize_per_tensor`, the same op with a rounding mode, for hardware that does not round half to even.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from fxquant.graph import nibbles
from fxquant.graph.rounding import round_to

with contextlib.suppress(ImportError):
    import torch.ao.quantization.fx._decomposed

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Class = TypeVar("_Class", bound=type)


def known_as_fake_quantize(cls: _Class) -> _Class:
    """Let torch.ao's functions (`model.apply(disable_observer)`) see a class and its subclasses as fake quantizers."""
    return _known_as("FakeQuantizeBase", cls)


def known_as_observer(cls: _Class) -> _Class:
    """The same for observers (`load_observer_state_dict`)."""
    return _known_as("ObserverBase", cls)


def _known_as(base: str, cls: _Class) -> _Class:
    abstract = getattr(getattr(torch.ao, "quantization", None), base, None)
    if abstract is not None:
        abstract.register(cls)  # a virtual subclass, as abc has them
    return cls


Number = float | Tensor
Geometry = tuple[Sequence[int], Sequence[int], Sequence[int], int]  # stride, padding, dilation, groups
_QPARAMS = "int quant_min, int quant_max, ScalarType dtype"
_libraries: list[torch.library.Library] = []  # registrations live as long as their Library object


def _quantize(x: Tensor, scale: Number, zero_point: Number, low: int, high: int, dtype: torch.dtype) -> Tensor:
    inverse = 1.0 / scale
    return torch.clamp(torch.round(x.float() * inverse) + zero_point, low, high).to(dtype)


def _dequantize(q: Tensor, scale: Number, zero_point: Number, out_dtype: torch.dtype | None) -> Tensor:
    steps: Tensor = q.to(torch.float32) - zero_point
    values: Tensor = steps * scale
    return values.to(out_dtype or torch.float32)


def _along(values: Tensor, x: Tensor, axis: int) -> Tensor:
    shape = [1] * x.dim()
    shape[axis] = -1
    return values.reshape(shape)


def _quantize_per_tensor(
    input: Tensor, scale: float, zero_point: int, quant_min: int, quant_max: int, dtype: torch.dtype
) -> Tensor:
    return _quantize(input, scale, zero_point, quant_min, quant_max, dtype)


def _dequantize_per_tensor(
    input: Tensor,
    scale: float,
    zero_point: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    return _dequantize(input, scale, zero_point, out_dtype)


def _quantize_per_channel(
    input: Tensor,
    scales: Tensor,
    zero_points: Tensor,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
) -> Tensor:
    along = _along(scales, input, axis), _along(zero_points, input, axis)
    return _quantize(input, *along, quant_min, quant_max, dtype)


def _dequantize_per_channel(
    input: Tensor,
    scales: Tensor,
    zero_points: Tensor | None,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    zero = 0 if zero_points is None else _along(zero_points, input, axis)
    return _dequantize(input, _along(scales, input, axis), zero, out_dtype)


def _dequantize_per_channel_group(
    input: Tensor,
    scales: Tensor,
    zero_points: Tensor | None,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    group_size: int,
    output_dtype: torch.dtype,
) -> Tensor:
    grouped = input.reshape(*scales.shape, group_size)
    zero = 0 if zero_points is None else zero_points.unsqueeze(-1)
    return _dequantize(grouped, scales.unsqueeze(-1), zero, output_dtype).reshape(input.shape)


def _choose_qparams(
    input: Tensor, quant_min: int, quant_max: int, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    low, high = torch.aminmax(input.float())
    low, high = low.clamp(max=0), high.clamp(min=0)
    scale = ((high - low) / (quant_max - quant_min)).clamp(min=eps).double()
    zero = (quant_min - torch.round(low / scale)).clamp(quant_min, quant_max).to(torch.int64)
    return scale, zero


def _choose_qparams_symmetric(
    input: Tensor, quant_min: int, quant_max: int, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    largest = input.float().abs().max()
    scale = (largest / ((quant_max - quant_min) / 2)).clamp(min=eps).double()
    return scale, torch.full((), (quant_max + quant_min + 1) // 2, dtype=torch.int64, device=input.device)


_DECOMPOSED = {
    "quantize_per_tensor": (f"(Tensor input, float scale, int zero_point, {_QPARAMS}) -> Tensor", _quantize_per_tensor),
    "dequantize_per_tensor": (
        f"(Tensor input, float scale, int zero_point, {_QPARAMS}, *, ScalarType? out_dtype=None) -> Tensor",
        _dequantize_per_tensor,
    ),
    "quantize_per_tensor.tensor": (
        f"(Tensor input, Tensor scale, Tensor zero_point, {_QPARAMS}) -> Tensor",
        _quantize_per_tensor,
    ),
    "dequantize_per_tensor.tensor": (
        f"(Tensor input, Tensor scale, Tensor zero_point, {_QPARAMS}, *, ScalarType? out_dtype=None) -> Tensor",
        _dequantize_per_tensor,
    ),
    "quantize_per_channel": (
        f"(Tensor input, Tensor scales, Tensor zero_points, int axis, {_QPARAMS}) -> Tensor",
        _quantize_per_channel,
    ),
    "dequantize_per_channel": (
        f"(Tensor input, Tensor scales, Tensor? zero_points, int axis, {_QPARAMS}, *, ScalarType? out_dtype=None)"
        " -> Tensor",
        _dequantize_per_channel,
    ),
    "dequantize_per_channel_group": (
        f"(Tensor input, Tensor scales, Tensor? zero_points, {_QPARAMS}, int group_size, ScalarType output_dtype)"
        " -> Tensor",
        _dequantize_per_channel_group,
    ),
    "choose_qparams.tensor": (
        "(Tensor input, int quant_min, int quant_max, float eps, ScalarType dtype) -> (Tensor, Tensor)",
        _choose_qparams,
    ),
    "choose_qparams_symmetric.tensor": (
        "(Tensor input, int quant_min, int quant_max, float eps, ScalarType dtype) -> (Tensor, Tensor)",
        _choose_qparams_symmetric,
    ),
}


def register_decomposed(namespace: str) -> torch.library.Library:
    """Register the ops of a converted graph under a namespace."""
    library = torch.library.Library(namespace, "DEF")
    for name, (schema, function) in _DECOMPOSED.items():
        library.define(f"{name}{schema}")
        library.impl(name, function, "CompositeExplicitAutograd")
    return library


if not hasattr(torch.ops.quantized_decomposed, "quantize_per_tensor"):
    _libraries.append(register_decomposed("quantized_decomposed"))


def _quantize_rounding(
    input: Tensor, scale: float, zero_point: int, quant_min: int, quant_max: int, dtype: torch.dtype, rounding: str
) -> Tensor:
    rounded = round_to(input.float() * (1.0 / scale), rounding)
    return torch.clamp(rounded + zero_point, quant_min, quant_max).to(dtype)


def _quantize_channel_rounding(
    input: Tensor,
    scales: Tensor,
    zero_points: Tensor,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    rounding: str,
) -> Tensor:
    rounded = round_to(input.float() * (1.0 / _along(scales, input, axis)), rounding)
    return torch.clamp(rounded + _along(zero_points, input, axis), quant_min, quant_max).to(dtype)


_own = torch.library.Library("fxquant", "DEF")
_own.define(f"quantize_per_tensor(Tensor input, float scale, int zero_point, {_QPARAMS}, str rounding) -> Tensor")
_own.impl("quantize_per_tensor", _quantize_rounding, "CompositeExplicitAutograd")
_own.define(
    f"quantize_per_channel(Tensor input, Tensor scales, Tensor zero_points, int axis, {_QPARAMS}, str rounding)"
    " -> Tensor"
)
_own.impl("quantize_per_channel", _quantize_channel_rounding, "CompositeExplicitAutograd")
_own.define("unpack(Tensor packed, int[] tail, bool signed) -> Tensor")
_own.impl("unpack", nibbles.unpack, "CompositeExplicitAutograd")
_libraries.append(_own)

decomposed = torch.ops.quantized_decomposed
QUANTIZE = decomposed.quantize_per_tensor.default
QUANTIZE_TENSOR = decomposed.quantize_per_tensor.tensor
QUANTIZE_ROUNDING = torch.ops.fxquant.quantize_per_tensor.default
UNPACK = torch.ops.fxquant.unpack.default  # integers of four bits, see graph/nibbles.py
QUANTIZE_CHANNEL = decomposed.quantize_per_channel.default
QUANTIZE_CHANNEL_ROUNDING = torch.ops.fxquant.quantize_per_channel.default
DEQUANTIZE = decomposed.dequantize_per_tensor.default
DEQUANTIZE_TENSOR = decomposed.dequantize_per_tensor.tensor
DEQUANTIZE_CHANNEL = decomposed.dequantize_per_channel.default
DEQUANTIZE_GROUP = decomposed.dequantize_per_channel_group.default
CHOOSE_QPARAMS = decomposed.choose_qparams.tensor
CHOOSE_QPARAMS_SYMMETRIC = decomposed.choose_qparams_symmetric.tensor

QUANTIZE_OPS = (QUANTIZE, QUANTIZE_TENSOR, QUANTIZE_ROUNDING, QUANTIZE_CHANNEL, QUANTIZE_CHANNEL_ROUNDING)
DEQUANTIZE_OPS = (DEQUANTIZE, DEQUANTIZE_TENSOR, DEQUANTIZE_CHANNEL, DEQUANTIZE_GROUP)


def interpreted(text: str, name: str = "replay") -> Callable[..., object] | None:
    """A function that torch's C++ interpreter runs, from the text of its graph; None if torch has none, or refuses.

    One that is to be saved has a `name` that begins with `__torch__.`.
    """
    try:
        function: Callable[..., Any] = torch._C._create_function_from_graph(name, torch._C.parse_ir(text))
    except (AttributeError, RuntimeError):
        return None
    return function


_scan: Any = None
with contextlib.suppress(ImportError):
    from torch._higher_order_ops.scan import scan as _scan


def to_onnx_program(
    program: torch.export.ExportedProgram, opset: int, table: Mapping[Callable[..., Any], Callable[..., Any]]
) -> torch.onnx.ONNXProgram:
    """`torch.onnx.export` with a table of translations; where torch lets us, its own table is built once per opset.

    It is built anew for each export otherwise, which takes half of the time of a small one.
    """
    registry = _onnx_registry(opset)
    if registry is None:
        exported = torch.onnx.export(
            program, dynamo=True, verbose=False, opset_version=opset, custom_translation_table=dict(table)
        )
        assert exported is not None
        return exported
    for target, function in table.items():
        registry.register_op(target, function, is_complex=False)
    core = importlib.import_module("torch.onnx._internal.exporter._core")
    found: torch.onnx.ONNXProgram = core.export(
        program, (), None, registry=registry, dynamic_shapes={}, verbose=False, opset_version=opset
    )
    return found


def _onnx_registry(opset: int) -> Any:
    """A copy of torch.onnx's translations for an opset, to add to; None where torch has them elsewhere."""
    try:
        core = importlib.import_module("torch.onnx._internal.exporter._core")
        wanted = ("registry", "dynamic_shapes", "verbose", "opset_version")
        if not set(wanted) <= set(inspect.signature(core.export).parameters):
            return None
        known = _torchlib(opset)
        registry = copy.copy(known)
        registry.functions = {target: list(found) for target, found in known.functions.items()}
        return registry if hasattr(registry, "register_op") else None
    except (ImportError, AttributeError, TypeError):
        return None


@functools.cache
def _torchlib(opset: int) -> Any:
    registration = importlib.import_module("torch.onnx._internal.exporter._registration")
    lowest = importlib.import_module("torch.onnx._internal.exporter._constants").TORCHLIB_OPSET
    return registration.ONNXRegistry.from_torchlib(opset_version=max(opset, lowest))


def has_scan() -> bool:
    """Whether torch can write a loop over the first dimension of a tensor as one op of an exported graph."""
    return _scan is not None


def scan(
    combine: Callable[..., object], state: tuple[Tensor, ...], steps: Tensor, *, reverse: bool
) -> tuple[tuple[Tensor, ...], Tensor]:
    """(final state, outputs) of `combine(state, step) -> (state, output)`, as one op."""
    found: tuple[tuple[Tensor, ...], Tensor] = _scan(combine, state, steps, reverse=reverse)
    return found


def run_by_compilers(function: _Function) -> _Function:
    """Have torch's compilers run a function, and not trace it: `torch.compiler.assume_constant_result`.

    That imports the compilers, which takes longer than the rest of torch and fxquant together.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def is_traced() -> bool:
    """Whether torch.jit.trace writes down the ops that run."""
    return not torch.compiler.is_compiling() and torch._C._get_tracing_state() is not None


def on_plain_sizes(function: _Function) -> _Function:
    """Hide a function that returns no tensor from torch.jit.trace: sizes are plain numbers to it."""

    @functools.wraps(function)
    def look(*args: object) -> object:
        if not is_traced():
            return function(*args)
        with untraced():
            return function(*args)

    return look  # type: ignore[return-value]


@contextlib.contextmanager
def untraced() -> Iterator[None]:
    """A context that torch.jit.trace does not see: sizes are plain numbers in it."""
    state = torch._C._get_tracing_state()
    torch._C._set_tracing_state(None)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch._C._set_tracing_state(state)  # type: ignore[attr-defined]


def dynamo_traces() -> bool:
    """Whether TorchDynamo is tracing in this thread, its own code included."""
    context = getattr(torch._guards, "CompileContext", None)
    return context is not None and context.current_compile_id() is not None


def keeps_volumes_last(x: torch.Size, weight: torch.Size, geometry: Geometry) -> bool:
    """Whether the float convolution that torch has for volumes of these sizes knows channels last; not all do."""
    select = getattr(torch._C, "_select_conv_backend", None)
    if select is None:
        return True
    batched = x if len(x) == len(weight) else (1, *x)
    stride, padding, dilation, groups = geometry
    ghosts = (torch.empty(1).expand(size) for size in (batched, weight))
    backend = select(*ghosts, None, stride, padding, dilation, False, [0] * len(stride), groups, None)
    return str(backend).rpartition(".")[2].startswith("Mkldnn")


def unseen() -> contextlib.AbstractContextManager[object]:
    """A context in which no dispatch mode sees the ops that run."""
    return torch._C._DisableTorchDispatch()


_MODES = ("_len_torch_dispatch_stack", "_len_torch_function_stack", "_are_functorch_transforms_active")
_KNOWS_MODES = all(hasattr(torch._C, name) for name in _MODES) and hasattr(nn.modules.module, "_has_any_global_hook")


def hooks_made() -> int | None:
    """How many hooks were ever registered in this process; None if torch does not count them."""
    return getattr(RemovableHandle, "next_id", None)


def has_global_hooks() -> bool:
    """Whether hooks on all modules of the process are set, or torch does not tell."""
    return not _KNOWS_MODES or bool(nn.modules.module._has_any_global_hook())


def plain_mode() -> bool:
    """Whether ops run as they are written: nothing traces, casts or intercepts them."""
    return _KNOWS_MODES and not (
        torch._C._len_torch_dispatch_stack()
        or torch._C._len_torch_function_stack()
        or torch._C._get_tracing_state()
        or torch._C._are_functorch_transforms_active()
        or torch.is_autocast_enabled("cpu")
    )


def class_before_script(module: nn.Module) -> type:
    """The class of a module; of a scripted one that which it was made of, if it is one of torch's."""
    if not is_scripted(module):
        return type(module)
    found = getattr(nn, str(getattr(module, "original_name", "")), None)
    return found if isinstance(found, type) else type(module)


def is_scripted(module: nn.Module) -> bool:
    """Whether a module is TorchScript, which has tables and code of its own."""
    return isinstance(module, torch.jit.ScriptModule)


def is_exported(module: nn.Module) -> bool:
    """Whether a module is that of an exported program."""
    return any(base.__module__ == "torch.export._unlift" for base in type(module).__mro__) and not is_guards(module)


def is_guards(module: object) -> bool:
    """Whether a module holds the checks of an exported program."""
    return type(module).__name__ == "GuardsFn"


def compiled_module(module: nn.Module) -> nn.Module | None:
    """The module inside torch.compile's wrapper; None for any other."""
    inner = module._modules.get("_orig_mod") if type(module).__module__.startswith("torch._dynamo") else None
    return inner if isinstance(inner, nn.Module) else None
