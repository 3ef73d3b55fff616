"""The call of a kernel, written down as torch ops, in the language of TorchScript's graphs: for torch.jit.trace.

Sizes and settings become constants of the text; tensors that no op made are handed in. What Python learns from the
values in a tensor is in no op, so a call in which it asks for one is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _get_current_dispatch_mode
from torch.utils.weak import WeakTensorKeyDictionary

from fxquant.graph.op_mode import Op, OpMode

_UNSTEADY = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)
_LISTS = {
    "int": "int[]",
    "float": "float[]",
    "bool": "bool[]",
    "Tensor": "Tensor[]",
    "number": "Scalar[]",
    "Optional[number]": "Scalar?[]",
    "Optional[Tensor]": "Tensor?[]",
}
# c10::ScalarType
_DTYPES = {
    torch.uint8: 0,
    torch.int8: 1,
    torch.int16: 2,
    torch.int32: 3,
    torch.int64: 4,
    torch.float16: 5,
    torch.float32: 6,
    torch.float64: 7,
    torch.bool: 11,
    getattr(torch, "qint8", None): 12,
    getattr(torch, "quint8", None): 13,
    torch.bfloat16: 15,
}
_FORMATS = {torch.contiguous_format: 0, torch.preserve_format: 1, torch.channels_last: 2, torch.channels_last_3d: 3}
_HUGE = 1e308


class _Refusal(Exception):
    """Why a run cannot be written down."""


class Tape(OpMode):
    """Writes down the ops that run while it is active. `refused` says why they cannot be, if so."""

    def __init__(self, inputs: list[Tensor]) -> None:
        super().__init__()
        self.refused = ""
        self.held: list[Tensor] = []  # made by no op: constants
        self._inputs = inputs
        self._names = WeakTensorKeyDictionary()
        self._count = 0
        self._constants: dict[str, str] = {}
        self._constant_lines: list[str] = []
        self._lines: list[str] = []
        self._input_names = [self._name(tensor) for tensor in inputs]
        self._held_names: list[str] = []

    def run_op(self, op: Op, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        values: list[str] = []
        if not self.refused:
            try:
                values = self._arguments(op, args, kwargs)
            except _Refusal as refusal:
                self.refused = str(refusal)
        made = op(*args, **kwargs)
        if not self.refused:
            try:
                self._write(op, values, made)
            except _Refusal as refusal:
                self.refused = str(refusal)
        return made

    def text(self, output: Tensor) -> str:
        """Return the graph from the inputs, and what is held, to an output."""
        returned = self._tensor(output)
        body = "\n  ".join((*self._constant_lines, *self._lines))
        return f"graph({_typed([*self._input_names, *self._held_names])}):\n  {body}\n  return ({returned})\n"

    def _fresh(self) -> str:
        self._count += 1
        return f"%v{self._count}"

    def _name(self, tensor: Tensor) -> str:
        name = self._names[tensor] = self._fresh()
        return name

    def _tensor(self, tensor: Tensor) -> str:
        if tensor not in self._names:
            self.held.append(tensor)
            self._held_names.append(self._name(tensor))
        name: str = self._names[tensor]
        return name

    def _arguments(self, func: Op, args: tuple[object, ...], kwargs: dict[str, object]) -> list[str]:
        """Return the arguments of a call, by their names in the text."""
        if any(tag in func.tags for tag in _UNSTEADY) and not _picks_by_number(func, args):
            raise _Refusal(f"{func} depends on the values in a tensor")
        names = []
        for index, argument in enumerate(func._schema.arguments):
            value = args[index] if index < len(args) else kwargs.get(argument.name, argument.default_value)
            names.append(self._value(value, argument.type))
            if argument.alias_info is not None and argument.alias_info.is_write and self._is_foreign(value):
                raise _Refusal(f"{func} writes over an input or a weight")
        return names

    def _is_foreign(self, value: object) -> bool:
        """Tell whether a tensor, or one of a list, shares memory with one that no op made."""
        outside = (*self._inputs, *(held for held in self.held if held.layout == torch.strided))
        return any(_shares(x, outside) for x in pytree.tree_leaves(value) if isinstance(x, Tensor))

    def _value(self, value: object, kind: torch._C.JitType) -> str:
        if isinstance(value, Tensor):
            return self._tensor(value)
        if kind.kind() == "OptionalType" and value is not None:
            kind = kind.getElementType()
        if isinstance(value, (list, tuple)):
            return self._list(value, kind)
        if isinstance(value, torch.dtype):
            if value not in _DTYPES:
                raise _Refusal(f"a tensor of {value}")
            value = _DTYPES[value]
        elif isinstance(value, torch.memory_format):
            value = _FORMATS[value]
        elif value is torch.strided:
            value = 0
        elif kind.kind() == "FloatType" and isinstance(value, int):
            value = float(value)
        return self._constant(value)

    def _list(self, values: Sequence[object], kind: torch._C.JitType) -> str:
        if kind.kind() != "ListType" or str(kind.getElementType()) not in _LISTS:
            raise _Refusal(f"an argument of type {kind}")
        element = kind.getElementType()
        items = ", ".join(self._value(item, element) for item in values)
        line = f"{_LISTS[str(element)]} = prim::ListConstruct({items})"
        if any(isinstance(item, Tensor) for item in values):
            name = self._fresh()
            self._lines.append(f"{name} : {line}")
            return name
        return self._define(line)

    def _constant(self, value: object) -> str:
        if value is None:
            return self._define("NoneType = prim::Constant()")
        if isinstance(value, bool):
            return self._define(f"bool = prim::Constant[value={int(value)}]()")
        if isinstance(value, int):
            return self._define(f"int = prim::Constant[value={value}]()")
        if isinstance(value, float):
            if math.isfinite(value):
                return self._define(f"float = prim::Constant[value={value!r}]()")
            if math.isinf(value):  # there is no word for it
                factors = self._constant(_HUGE), self._constant(math.copysign(_HUGE, value))
                return self._define(f"float = aten::mul({', '.join(factors)})")
        if isinstance(value, str) and (not value or value.isidentifier()):
            return self._define(f'str = prim::Constant[value="{value}"]()')
        if isinstance(value, torch.device):
            return self._define(f'Device = prim::Constant[value="{value}"]()')
        raise _Refusal(f"an argument of type {type(value).__name__}")

    def _define(self, line: str) -> str:
        """Return a constant, once."""
        if line not in self._constants:
            self._constants[line] = self._fresh()
            self._constant_lines.append(f"{self._constants[line]} : {line}")
        return self._constants[line]

    def _write(self, func: torch._ops.OpOverload[..., object], arguments: list[str], made: object) -> None:
        call = f"{func._schema.name}({', '.join(arguments)})"
        results = made if isinstance(made, (list, tuple)) else [made]
        tensors = [result for result in results if isinstance(result, Tensor)]
        if not tensors or len(tensors) < len(results):
            raise _Refusal(f"{func} returns something other than tensors")
        if isinstance(made, list) and len(func._schema.returns) == 1:
            parts = self._fresh()
            self._lines.append(f"{parts} : Tensor[] = {call}")
            call = f"prim::ListUnpack({parts})"
        self._lines.append(f"{_typed([self._name(tensor) for tensor in tensors])} = {call}")


def recording() -> bool:
    """Tell whether the next op is written down. The weight has to be packed then: packed ones cannot be stored."""
    return isinstance(_get_current_dispatch_mode(), Tape)


def _picks_by_number(func: object, args: tuple[object, ...]) -> bool:
    """Tell whether an indexing gives a size that does not depend on values: no index is a mask."""
    if func is not torch.ops.aten.index.Tensor:
        return False
    indexes = [index for index in pytree.tree_leaves(args[1]) if isinstance(index, Tensor)]
    return not any(index.dtype in (torch.bool, torch.uint8) for index in indexes)


def _shares(tensor: Tensor, others: Iterable[Tensor]) -> bool:
    return tensor.untyped_storage()._cdata in {other.untyped_storage()._cdata for other in others}


def _typed(names: list[str]) -> str:
    return ", ".join(f"{name} : Tensor" for name in names)
