"""The one place that touches what torch may move: the `quantized_decomposed` ops, its C++ interpreter, its modes.

torch registers the ops when its (deprecated) quantization package is imported. Where that package is gone, they are
registered here with the same schemas (`qdq_ops.py`), so that converted graphs, torch.onnx and Inductor see one form.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.hooks import RemovableHandle

from fxquant.graph.qdq_ops import plain_functions, register_decomposed, register_own

with contextlib.suppress(ImportError):
    import torch.ao.quantization.fx._decomposed

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Class = TypeVar("_Class", bound=type)


def known_as_fake_quantize(cls: _Class) -> _Class:
    """Let torch.ao's functions (`model.apply(disable_observer)`) see a class and its subclasses as fake quantizers."""
    return _known_as("FakeQuantizeBase", cls)


def known_as_observer(cls: _Class) -> _Class:
    """Do the same for observers (`load_observer_state_dict`)."""
    return _known_as("ObserverBase", cls)


def _known_as(base: str, cls: _Class) -> _Class:
    abstract = getattr(getattr(torch.ao, "quantization", None), base, None)
    if abstract is not None:
        abstract.register(cls)  # a virtual subclass, as abc has them
    return cls


Geometry = tuple[Sequence[int], Sequence[int], Sequence[int], int]  # stride, padding, dilation, groups
_libraries: list[torch.library.Library] = []  # registrations live as long as their Library object

if not hasattr(torch.ops.quantized_decomposed, "quantize_per_tensor"):
    _libraries.append(register_decomposed("quantized_decomposed"))
_libraries.append(register_own())

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
_PLAIN = plain_functions("quantized_decomposed")
DEQUANTIZE_OPS = (DEQUANTIZE, DEQUANTIZE_TENSOR, DEQUANTIZE_CHANNEL, DEQUANTIZE_GROUP)


def in_plain_ops(target: Callable[..., object]) -> Callable[..., object]:
    """Return what an op of a converted graph computes, as a function of torch's plain ops; others as they are."""
    return _PLAIN.get(target, target)


def interpreted(text: str, name: str = "replay") -> Callable[..., object] | None:
    """Return a function that torch's C++ interpreter runs, from the text of its graph.

    None if torch has no interpreter, or refuses.
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


def has_scan() -> bool:
    """Tell whether torch can write a loop over the first dimension of a tensor as one op of an exported graph."""
    return _scan is not None


def scan(
    combine: Callable[..., object], state: tuple[Tensor, ...], steps: Tensor, *, reverse: bool
) -> tuple[tuple[Tensor, ...], Tensor]:
    """(final state, outputs) of `combine(state, step) -> (state, output)`, as one op."""
    found: tuple[tuple[Tensor, ...], Tensor] = _scan(combine, state, steps, reverse=reverse)
    return found


def bare(op: _Function) -> _Function:
    """Return the function of C++ that an op calls, with which a call takes less time."""
    return getattr(op, "_op", op)


def run_by_compilers(function: _Function) -> _Function:
    """Have torch's compilers run a function, and not trace it: `torch.compiler.assume_constant_result`.

    That imports the compilers, which takes longer than the rest of torch and fxquant together.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def is_traced() -> bool:
    """Tell whether torch.jit.trace writes down the ops that run."""
    return not torch.compiler.is_compiling() and torch._C._get_tracing_state() is not None


def on_plain_sizes(function: _Function) -> _Function:
    """Hide a function that returns no tensor from torch.jit.trace: sizes are plain numbers to it.

    What it makes is on the CPU, also where torch.set_default_device names another device.
    """

    @functools.wraps(function)
    def look(*args: object) -> object:
        with contextlib.ExitStack() as stack:
            if is_traced():
                stack.enter_context(untraced())
            if torch.get_default_device().type != "cpu":
                stack.enter_context(torch.device("cpu"))
            return function(*args)

    return look  # type: ignore[return-value]


@contextlib.contextmanager
def untraced() -> Iterator[None]:
    """Return a context that torch.jit.trace does not see: sizes are plain numbers in it."""
    state = torch._C._get_tracing_state()
    torch._C._set_tracing_state(None)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch._C._set_tracing_state(state)  # type: ignore[attr-defined]


def dynamo_traces() -> bool:
    """Tell whether TorchDynamo is tracing in this thread, its own code included."""
    context = getattr(torch._guards, "CompileContext", None)
    return context is not None and context.current_compile_id() is not None


def keeps_volumes_last(x: torch.Size, weight: torch.Size, geometry: Geometry) -> bool:
    """Tell whether the float convolution that torch has for volumes of these sizes knows channels last; not all do."""
    select = getattr(torch._C, "_select_conv_backend", None)
    if select is None:
        return True
    batched = x if len(x) == len(weight) else (1, *x)
    stride, padding, dilation, groups = geometry
    ghosts = (torch.empty(1).expand(size) for size in (batched, weight))
    backend = select(*ghosts, None, stride, padding, dilation, False, [0] * len(stride), groups, None)
    return str(backend).rpartition(".")[2].startswith("Mkldnn")


def unseen() -> contextlib.AbstractContextManager[object]:
    """Return a context in which no dispatch mode sees the ops that run."""
    return torch._C._DisableTorchDispatch()


_MODES = ("_len_torch_dispatch_stack", "_len_torch_function_stack", "_are_functorch_transforms_active")
_KNOWS_MODES = all(hasattr(torch._C, name) for name in _MODES) and hasattr(nn.modules.module, "_has_any_global_hook")


def hooks_made() -> int | None:
    """Tell how many hooks were ever registered in this process; None if torch does not count them."""
    return getattr(RemovableHandle, "next_id", None)


def has_global_hooks() -> bool:
    """Tell whether hooks on all modules of the process are set, or torch does not tell."""
    return not _KNOWS_MODES or bool(nn.modules.module._has_any_global_hook())


def plain_mode() -> bool:
    """Tell whether ops run as they are written: nothing traces, casts or intercepts them."""
    return _KNOWS_MODES and not (
        torch._C._len_torch_dispatch_stack()
        or torch._C._len_torch_function_stack()
        or torch._C._get_tracing_state()
        or torch._C._are_functorch_transforms_active()
        or torch.is_autocast_enabled("cpu")
    )


def is_transformed() -> bool:
    """Tell whether torch.func transforms the ops that run: vmap, grad and others, which know torch's own ops."""
    active = getattr(torch._C, "_are_functorch_transforms_active", None)
    return active is not None and bool(active())


def autocasting() -> list[str]:
    """Return the kinds of device on which torch.autocast casts the ops that run."""
    return [device for device in ("cpu", "cuda") if torch.is_autocast_enabled(device)]


@contextlib.contextmanager
def without_autocast(devices: Sequence[str]) -> Iterator[None]:
    """Return a context in which ops on these devices run as they are written."""
    with contextlib.ExitStack() as stack:
        for device in devices:
            stack.enter_context(torch.autocast(device, enabled=False))
        yield


def fake_tensors() -> tuple[contextlib.AbstractContextManager[object], Callable[[torch.Tensor], torch.Tensor]]:
    """Return a context in which ops compute sizes and dtypes alone, and what makes a tensor for it of a real one."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    return mode, mode.from_tensor


def class_before_script(module: nn.Module) -> type:
    """Return the class of a module; of a scripted one that which it was made of, if it is one of torch's."""
    if not is_scripted(module):
        return type(module)
    found = getattr(nn, str(getattr(module, "original_name", "")), None)
    return found if isinstance(found, type) else type(module)


def script_class(module: nn.Module) -> type:
    """Return the class of a module; one and the same of all that are scripted, traced, loaded, or copies of these."""
    return torch.jit.ScriptModule if is_scripted(module) else type(module)


def is_scripted(module: nn.Module) -> bool:
    """Tell whether a module is TorchScript, which has tables and code of its own."""
    return isinstance(module, torch.jit.ScriptModule)


def trace(module: nn.Module, args: tuple[object, ...]) -> nn.Module:
    """Return the TorchScript of what a module does with these arguments, as it is without gradients."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        traced: nn.Module = torch.jit.trace(module, args, check_trace=False, strict=False)
    return traced


def is_exported(module: nn.Module) -> bool:
    """Tell whether a module is that of an exported program."""
    return any(base.__module__ == "torch.export._unlift" for base in type(module).__mro__) and not is_guards(module)


def is_guards(module: object) -> bool:
    """Tell whether a module holds the checks of an exported program."""
    # by way of what is imported: there are none before, and to import it takes long
    guards = getattr(sys.modules.get("torch.export._unlift"), "GuardsFn", None)
    return guards is not None and isinstance(module, guards)


def compiled_module(module: nn.Module) -> nn.Module | None:
    """Return the module inside torch.compile's wrapper; None for any other."""
    inner = module._modules.get("_orig_mod") if type(module).__module__.startswith("torch._dynamo") else None
    return inner if isinstance(inner, nn.Module) else None
