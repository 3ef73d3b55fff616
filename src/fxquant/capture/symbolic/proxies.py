"""What the traced code works on in the place of tensors, sizes and other values."""

from __future__ import annotations

import dis
import operator
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch
from torch import fx

from fxquant.capture.reasons import Cause
from fxquant.capture.symbolic.concrete import fix_value, is_argument_of_method, value_of
from fxquant.errors import Reason
from fxquant.ops.table import OPS


class Proxy(fx.Proxy):
    """Records `x += y` and `x[i] = y`, which fx.Proxy turns into `x = x + y` and an error; see also concrete.py."""

    def __getattr__(self, k: str) -> Any:
        function = OPS.of_attribute(k)
        if function is not None:  # x.T: a node here and now, in the module whose code it is
            return self.tracer.create_proxy("call_function", function, (self,), {})
        attribute = _Attribute(self, k)
        if isinstance(value_of(attribute), str):  # x.device.type: nothing takes a proxy for a string
            return fix_value(attribute, "str", str, Reason("a traced variable cannot be used as a string"))
        return attribute

    def __len__(self) -> int:
        return int(fix_value(self, "len", len, Cause.LENGTH.because()))

    def __index__(self) -> int:
        if is_argument_of_method():
            # torch tries whether an argument is an integer before it looks for proxies: say no, and stay general
            raise TypeError("a traced variable is not a plain integer")
        return int(
            fix_value(self, "int", operator.index, Reason("a traced variable cannot be used as a plain integer"))
        )

    def __int__(self) -> int:
        return int(fix_value(self, "int", int, Reason("a traced variable cannot be used as a plain integer")))

    def __float__(self) -> float:
        return float(fix_value(self, "float", float, Reason("a traced variable cannot be used as a plain number")))

    def __iter__(self) -> Iterator[fx.Proxy]:
        """As many items as an assignment asks for, or as the example has.

        torch's own keeps its frame in a local, and so all that is traced until the next garbage collection.
        """
        items: Any = self
        count = _unpacked(sys._getframe(1))
        return self.tracer.iter(self) if count is None else (items[i] for i in range(count))

    def __setitem__(self, key: object, value: object) -> None:
        self.tracer.create_proxy("call_function", operator.setitem, (self, key, value), {})


def _unpacked(frame: FrameType) -> int | None:
    """Return n where `a, b, ... = x` with n names is what a frame does; None elsewhere."""
    now = next(each for each in dis.get_instructions(frame.f_code) if each.offset == frame.f_lasti)
    return now.arg if now.opname == "UNPACK_SEQUENCE" else None


def _record_in_place(name: str) -> Callable[[fx.Proxy, object], fx.Proxy]:
    def method(self: fx.Proxy, other: object) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", getattr(operator, name), (self, other), {})

    return method


class StateProxy(Proxy):
    """A parameter or buffer: its sizes are plain numbers, so that code may branch on them."""

    def __init__(self, node: fx.Node, tracer: fx.Tracer, tensor: torch.Tensor) -> None:
        super().__init__(node, tracer)
        self.tensor = tensor

    @property
    def shape(self) -> torch.Size:
        return self.tensor.shape

    @property
    def ndim(self) -> int:
        return self.tensor.ndim

    @property
    def dtype(self) -> torch.dtype:
        return self.tensor.dtype

    def size(self, dim: int | None = None) -> object:
        return self.tensor.size() if dim is None else self.tensor.size(dim)

    def dim(self) -> int:
        return self.tensor.dim()

    def numel(self) -> int:
        return self.tensor.numel()


for _name in ("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor", "imatmul"):
    setattr(Proxy, f"__{_name}__", _record_in_place(_name))


class _Attribute(Proxy, fx.proxy.Attribute):
    """`x.shape`, of which a node is made only when it is used."""

    def __init__(self, root: fx.Proxy, attr: str) -> None:
        fx.proxy.Attribute.__init__(self, root, attr)

    @property
    def node(self) -> fx.Node:
        return fx.proxy.Attribute.node.fget(self)  # type: ignore[attr-defined, no-any-return]

    @node.setter
    def node(self, value: fx.Node) -> None:
        self._node = value

    def __call__(self, *args: object, **kwargs: object) -> fx.Proxy:
        return fx.proxy.Attribute.__call__(self, *args, **kwargs)
