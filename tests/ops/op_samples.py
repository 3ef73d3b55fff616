"""How each spelling of the op table is called: samples per kind, for `test_table.py`.

A spelling has a name: `nn.ReLU`, `nn.ReLU(inplace)`, `F.relu`, `F.relu(inplace)`, `torch.relu`, `operator.add`,
`.relu_` (a method), `x.T` (an attribute), `packet.relu` (`torch.ops.aten.relu`), `aten.relu.default` (an overload).
Samples are found by it.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fxquant.ops.table import Op

Call = Callable[[Callable[..., Any], Tensor, Any], Any]

SHAPES = {
    "rows": (8, 8),
    "signal": (2, 4, 8),
    "square": (2, 8, 8),
    "image": (2, 4, 8, 8),
    "volume": (2, 4, 4, 4, 8),
    "single": (2, 1, 8),
    "tokens": (2, 8),
}
BY_DIM = {1: "signal", 2: "image", 3: "volume"}


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One way to call the spellings whose names match `of` (globs, with spaces between).

    `call(f, x, own)` is for functions, methods and ATen: `own` has the tensors of `own`, and `own.other(x)` is a second
    tensor from an int8 kernel. Modules are made from `init` and `settings`, and called by `use`.
    """

    of: str = "*"
    call: Call = lambda f, x, own: f(x)
    use: Call = lambda f, x, own: f(x)
    init: tuple[Any, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    layout: str = "image"
    own: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    also: str = ""  # the kinds of the other ops in `call`
    exported: str | None = None  # all kinds of its export, where that differs; a comment says why
    exportable: bool = True  # False if torch.export refuses it
    status: str = "int8"  # or "float", "weight_only", "removed"
    reason: str = ""  # must be in the Decision's reason

    def names(self, spelling: str) -> bool:
        return any(fnmatchcase(spelling, pattern) for pattern in self.of.split())


@dataclass(frozen=True, kw_only=True)
class Spelling:
    """A spelling of a row: `make(sample)` gives what is called."""

    kind: str
    name: str
    make: Callable[[Sample], Callable[..., Any]]
    is_module: bool = False
    is_in_place: bool = False


# In the schema of an ATen packet, but not for float tensors on a CPU.
NOT_CALLABLE = {
    **dict.fromkeys(("aten.bmm.dtype", "aten.mm.dtype", "aten.addmm.dtype", "aten.baddbmm.dtype"), "for CUDA only"),
    "aten.einsum.sublist": "has no Python spelling",
    **dict.fromkeys(("aten.numpy_T.a", "aten.matrix_H.a", "aten.mT.a", "aten.mH.a"), "TorchScript's twin of default"),
    "aten.split.default": "TorchScript's twin of sizes",
    **dict.fromkeys(("aten.to.prim_Device", "aten.to.prim_dtype", "aten.to.prim_other"), "TorchScript's"),
    **dict.fromkeys(("aten.index.Tensor_hacked_twin", "aten.index.list_Tensor"), "TorchScript's"),
    "aten.repeat_interleave.Tensor": "takes counts only, and returns indices",
}


def spellings(row: Op) -> Iterator[Spelling]:
    """Every spelling of a row: what it lists, ATen packets with all their overloads, and `inplace=True` where it is."""
    for cls in row.modules:
        yield Spelling(kind=row.kind, name=f"nn.{cls.__name__}", make=partial(_module, cls), is_module=True)
        if "inplace" in inspect.signature(cls).parameters:
            make = partial(_module, cls, inplace=True)
            name = f"nn.{cls.__name__}(inplace)"
            yield Spelling(kind=row.kind, name=name, make=make, is_module=True, is_in_place=True)
    twins = row.inplace or {}
    for function in dict.fromkeys(row.functions):
        name = _name(function)
        yield Spelling(kind=row.kind, name=name, make=partial(_same, function), is_in_place=function in twins)
        if _has_flag(function):
            make = partial(_same, partial(function, inplace=True))
            yield Spelling(kind=row.kind, name=f"{name}(inplace)", make=make, is_in_place=True)
    for method in row.methods:
        make = partial(_same, partial(_call_method, method))
        yield Spelling(kind=row.kind, name=f".{method}", make=make, is_in_place=method in twins)
    for attribute in row.attributes or {}:
        yield Spelling(kind=row.kind, name=f"x.{attribute}", make=partial(_same, operator.attrgetter(attribute)))
    for packet_name in row.aten:
        packet = getattr(torch.ops.aten, packet_name)
        in_place = packet_name.endswith("_")
        yield Spelling(kind=row.kind, name=f"packet.{packet_name}", make=partial(_same, packet), is_in_place=in_place)
        for overload in packet.overloads():
            if "name" in overload.lower():
                continue  # dims by name, which torch had up to 2.12
            function = getattr(packet, overload)
            name = f"aten.{packet_name}.{overload}"
            if _takes_tensors(function._schema) and name not in NOT_CALLABLE:
                yield Spelling(kind=row.kind, name=name, make=partial(_same, function), is_in_place=in_place)


def samples(spelling: Spelling) -> list[Sample]:
    """The samples that name a spelling, else those for all of its kind."""
    of_kind = SAMPLES.get(spelling.kind, ())
    named = [sample for sample in of_kind if sample.of != "*" and sample.names(spelling.name)]
    return named or [sample for sample in of_kind if sample.of == "*"]


def _module(cls: type[nn.Module], sample: Sample, **settings: Any) -> nn.Module:
    return cls(*sample.init, **sample.settings, **settings)


def _same(function: Callable[..., Any], sample: Sample) -> Callable[..., Any]:
    return function


def _call_method(name: str, x: Any, *args: Any, **kwargs: Any) -> Any:
    return getattr(x, name)(*args, **kwargs)


def _name(function: Callable[..., Any]) -> str:
    places = {
        "torch": torch,
        "F": F,
        "operator": operator,
        "torch.special": torch.special,
        "torch.linalg": torch.linalg,
    }
    name = function.__name__
    for prefix, place in places.items():
        for candidate in (name, name.removeprefix("special_").removeprefix("linalg_")):
            if getattr(place, candidate, None) is function:
                return f"{prefix}.{candidate}"
    found = next((f"F.{key}" for key, value in vars(F).items() if value is function), None)
    assert found is not None, f"{function} has no public name"
    return found


def _has_flag(function: Callable[..., Any]) -> bool:
    try:
        return "inplace" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def _takes_tensors(schema: torch._C.FunctionSchema) -> bool:
    types = [str(argument.type) for argument in schema.arguments]
    named = any("Dimname" in str(argument) for argument in schema.arguments)
    return any("Tensor" in t for t in types) and not named and not any(a.is_out for a in schema.arguments)


def _conv(dim: int) -> tuple[Sample, ...]:
    layout, own = BY_DIM[dim], {"weight": (4, 4, *(3,) * dim), "bias": (4,)}
    return (
        Sample(
            of="torch.* packet.* aten.*.default",
            layout=layout,
            own=own,
            call=lambda f, x, own: f(x, own.weight, own.bias, [1] * dim, [1] * dim),
        ),
        Sample(of="torch.*", layout=layout, own={"weight": own["weight"]}, call=lambda f, x, own: f(x, own.weight)),
        Sample(
            of="torch.* aten.*.padding",
            layout=layout,
            own=own,
            call=lambda f, x, own: f(x, own.weight, own.bias, padding="same"),
        ),
        Sample(of="torch.*", layout=layout, own=own, call=lambda f, x, own: f(x, own.weight * 2.0)),
        Sample(
            of="torch.*",
            layout=layout,
            own=own,
            call=lambda f, x, own: f(x, own.weight * x.mean()),
            also="mean mul",
            status="float",
            reason="computed at run time",
        ),
        Sample(of="nn.*", layout=layout, init=(4, 4, 3)),
        Sample(of="nn.*", layout=layout, init=(4, 4, 3), use=lambda f, x, own: f(input=x)),
        Sample(of="nn.*", layout=layout, init=(4, 4, 3), settings={"padding": "same", "bias": False, "groups": 2}),
        Sample(
            of="nn.*",
            layout=layout,
            init=(4, 4, 3),
            settings={"padding": 1, "padding_mode": "circular"},
            also="pad",
        ),
    )


def _conv_transpose(dim: int) -> tuple[Sample, ...]:
    layout, own = BY_DIM[dim], {"weight": (4, 2, *(2,) * dim), "bias": (2,)}
    return (
        Sample(layout=layout, own=own, call=lambda f, x, own: f(x, own.weight, own.bias, [2] * dim)),
        Sample(of="nn.*", layout=layout, init=(4, 4, 2), settings={"stride": 2, "groups": 2}),
    )


def _norm(
    *, by_dim: bool, functional: Call, aten: Call, init: tuple[Any, ...], own: str, width: int = 4
) -> tuple[Sample, ...]:
    tensors = dict.fromkeys(own.split(), (width,))
    dims = (1, 2, 3) if by_dim else ()
    modules = (Sample(of=f"nn.*{dim}d", layout=BY_DIM[dim], init=init) for dim in dims)
    return (
        Sample(of="F.*", own=tensors, call=functional),
        Sample(of="torch.* packet.* aten.*", own=tensors, call=aten),
        *(modules if by_dim else (Sample(of="nn.*", init=init),)),
    )


def _reverse(f: Callable[..., Any], x: Tensor) -> Tensor:
    """10 + x, which is also x.__radd__(10)."""
    return f(x, 10) if isinstance(f, partial) else f(10, x)


def _arithmetic(exported: str | None = None) -> tuple[Sample, ...]:
    return (
        Sample(
            of="torch.* operator.* .[!_]* .__[!r]* packet.* aten.*.Tensor", call=lambda f, x, own: f(x, own.other(x))
        ),
        Sample(of="torch.* operator.* .[!_]* .__[!r]* aten.*Scalar", call=lambda f, x, own: f(x, 1.5)),
        Sample(of="torch.* .*[a-z]", call=lambda f, x, own: f(x, other=own.other(x))),
        Sample(of="operator.[!i]* .__r*", call=lambda f, x, own: _reverse(f, own.other(x)), exported=exported),
    )


def _pool(*, of: str, size: int, **stated: Any) -> Iterator[Sample]:
    for dim, layout in BY_DIM.items():
        globs = " ".join(glob.replace("?d", f"{dim}d") for glob in of.split())
        sizes = [size] * dim
        yield Sample(of=globs, layout=layout, call=lambda f, x, own, sizes=sizes: f(x, sizes), init=(size,), **stated)


def _upsample(name: str, dim: int, *corners: bool, **stated: Any) -> tuple[Sample, ...]:
    layout = BY_DIM[dim]
    sizes, factors = [2 * size for size in SHAPES[layout][2:]], [2.0] * dim
    return (
        Sample(
            of=f"packet.{name} aten.{name}.default",
            layout=layout,
            call=lambda f, x, own: f(x, sizes, *corners),
            **stated,
        ),
        Sample(of=f"aten.{name}.vec", layout=layout, call=lambda f, x, own: f(x, None, *corners, factors), **stated),
    )


def _pads() -> Iterator[Sample]:
    for dim, layout in BY_DIM.items():
        sizes = [1] * 2 * dim
        yield Sample(of=f"nn.[!C]*Pad{dim}d nn.Circ*{dim}d", layout=layout, init=(1,))
        yield Sample(of=f"nn.ConstantPad{dim}d", layout=layout, init=(1, 0.0))
        yield Sample(of=f"nn.ConstantPad{dim}d", layout=layout, init=(1, 3.0), status="float", reason="pads with 3.0")
        yield Sample(
            of=f"*.re*_pad{dim}d *.re*_pad{dim}d.default",
            layout=layout,
            call=lambda f, x, own, sizes=sizes: f(x, sizes),
        )


def _joined(pair: Any) -> Tensor:
    first, second = pair
    return first + second


_VALUE = {"status": "float", "reason": "pads with 1.5"}
_FLOAT_BICUBIC = {"status": "float", "reason": "overshoots"}

SAMPLES: dict[str, tuple[Sample, ...]] = {
    **{f"conv{dim}d": _conv(dim) for dim in BY_DIM},
    **{f"conv_transpose{dim}d": _conv_transpose(dim) for dim in BY_DIM},
    "linear": (
        Sample(of="nn.*", init=(8, 8)),
        Sample(own={"weight": (8, 8), "bias": (8,)}, call=lambda f, x, own: f(x, own.weight, own.bias)),
        Sample(of="F.*", own={"weight": (8, 8)}, call=lambda f, x, own: f(x, own.weight)),
    ),
    "embedding": (
        Sample(of="nn.*", init=(16, 8), layout="tokens", status="weight_only"),
        Sample(
            of="nn.*",
            init=(16, 8),
            settings={"max_norm": 1.0},
            layout="tokens",
            status="float",
            exported="embedding identity embedding_renorm_.default",
        ),
        Sample(
            of="F.*",
            own={"weight": (16, 8)},
            layout="tokens",
            call=lambda f, x, own: f(x, own.weight),
            status="weight_only",
        ),
        Sample(own={"weight": (16, 8)}, layout="tokens", call=lambda f, x, own: f(own.weight, x), status="weight_only"),
    ),
    "embedding_bag": (
        Sample(of="nn.*", init=(16, 8), layout="tokens", status="weight_only"),
        Sample(
            of="F.*",
            own={"weight": (16, 8)},
            layout="tokens",
            call=lambda f, x, own: f(x, own.weight),
            status="weight_only",
        ),
    ),
    "matmul": (
        Sample(layout="square", call=lambda f, x, own: f(x, own.other(x))),
        Sample(of="*.mm *.mm.*", layout="rows", call=lambda f, x, own: f(x, own.other(x))),
        Sample(of="torch.bmm", layout="square", call=lambda f, x, own: f(x, mat2=own.other(x))),
    ),
    "addmm": (
        Sample(of="*.addmm*", layout="rows", call=lambda f, x, own: f(own.other(x), x, own.other(x))),
        Sample(of="*.baddbmm*", layout="square", call=lambda f, x, own: f(own.other(x), x, own.other(x))),
        Sample(
            of="torch.baddbmm",
            layout="square",
            call=lambda f, x, own: f(own.other(x), batch1=x, batch2=own.other(x), alpha=0.5),
        ),
    ),
    "einsum": (
        Sample(of="torch.*", layout="square", call=lambda f, x, own: f("bij,bkj->bik", x, own.other(x))),
        Sample(
            of="torch.* packet.* aten.*", layout="square", call=lambda f, x, own: f("bij,bjk->bik", [x, own.other(x)])
        ),
        Sample(of="torch.*", call=lambda f, x, own: f("...ij,...jk->...ik", x, own.other(x))),
        Sample(of="torch.*", layout="square", call=lambda f, x, own: f("bij,bjk", x, own.other(x))),
        Sample(
            of="torch.*",
            layout="square",
            call=lambda f, x, own: f("bij,bij->bij", x, own.other(x)),
            status="float",
            reason="contracts no index",
        ),
    ),
    "attention": (
        Sample(call=lambda f, x, own: f(x, own.other(x), x)),
        Sample(of="F.*", call=lambda f, x, own: f(x, key=own.other(x), value=x, is_causal=True)),
    ),
    # Of a linear: a batch norm after a conv would be folded into it.
    "batch_norm": _norm(
        by_dim=True,
        functional=lambda f, x, own: f(x, own.running_mean, own.running_var, own.weight, own.bias),
        aten=lambda f, x, own: f(x, own.weight, own.bias, own.running_mean, own.running_var, False, 0.1, 1e-5, False),
        init=(4,),
        own="weight bias running_mean running_var",
    ),
    "layer_norm": _norm(
        by_dim=False,
        functional=lambda f, x, own: f(x, (8,), own.weight, own.bias),
        aten=lambda f, x, own: f(x, (8,), own.weight, own.bias),
        init=(8,),
        own="weight bias",
        width=8,
    ),
    "group_norm": _norm(
        by_dim=False,
        functional=lambda f, x, own: f(x, 2, own.weight, own.bias),
        aten=lambda f, x, own: f(x, 2, own.weight, own.bias),
        init=(2, 4),
        own="weight bias",
    ),
    "instance_norm": _norm(
        by_dim=True,
        functional=lambda f, x, own: f(x, weight=own.weight, bias=own.bias),
        aten=lambda f, x, own: f(x, own.weight, own.bias, None, None, True, 0.1, 1e-5, False),
        init=(4,),
        own="weight bias",
    ),
    "add": (
        *_arithmetic(),
        Sample(of="torch.* .add*", call=lambda f, x, own: f(x, own.other(x), alpha=2)),
        # a constant of an export is made where it is used
        Sample(of="torch.add", call=lambda f, x, own: f(x, torch.ones(8)), exported="add ones.default"),
    ),
    "sub": _arithmetic(),
    "mul": _arithmetic(),
    "div": (
        *_arithmetic(exported="reciprocal.default mul"),  # 2 / x is 2 * (1 / x) there
        Sample(
            of="torch.div* .div* aten.*Tensor_mode",
            call=lambda f, x, own: f(own.other(x), own.other(x), rounding_mode="floor"),
            status="float",
            reason="rounds its result",
        ),
        Sample(
            of="aten.*Scalar_mode",
            call=lambda f, x, own: f(own.other(x), 0.01, rounding_mode="trunc"),
            status="float",
            reason="rounds its result",
        ),
    ),
    "mean": (
        Sample(call=lambda f, x, own: f(x, (1, 2))),
        Sample(of="torch.* .*", call=lambda f, x, own: f(x, dim=1, keepdim=True)),
        Sample(of="torch.* .* aten.*.default", call=lambda f, x, own: f(x).reshape(1), also="reshape"),
    ),
    "sum": (
        Sample(call=lambda f, x, own: f(x, (1, 2))),
        Sample(of="torch.* .*", call=lambda f, x, own: f(x, dim=1, keepdim=True)),
        Sample(of="torch.* .* aten.*.default", call=lambda f, x, own: f(x).reshape(1), also="reshape"),
    ),
    "leaky_relu": (Sample(call=lambda f, x, own: f(x, 0.2), init=(0.2,)),),
    "prelu": (Sample(own={"weight": (4,)}, call=lambda f, x, own: f(x, own.weight), init=(4,)),),
    "elu": (Sample(call=lambda f, x, own: f(x, 1.5), init=(1.5,)),),
    "hardswish": (Sample(),),
    "silu": (Sample(),),
    "mish": (Sample(),),
    "gelu": (
        Sample(),
        Sample(of="nn.* F.*", settings={"approximate": "tanh"}, call=lambda f, x, own: f(x, approximate="tanh")),
    ),
    "avg_pool": tuple(_pool(of="*vg_pool?d* *vgPool?d", size=2)),
    "adaptive_avg_pool": tuple(_pool(of="*vg_pool?d* *vgPool?d", size=2)),
    "sigmoid": (Sample(),),
    "hardsigmoid": (Sample(),),
    "tanh": (Sample(),),
    "softmax": (
        Sample(call=lambda f, x, own: f(x, -1), init=(-1,)),
        Sample(of="nn.Softmax2d"),
        Sample(of="F.* torch.* .*", call=lambda f, x, own: f(x, dim=1)),
        Sample(of="*._softmax*", call=lambda f, x, own: f(x, 1, False)),
    ),
    "relu": (
        Sample(),
        Sample(of="F.relu torch.relu", call=lambda f, x, own: f(input=x)),
    ),
    "clamp": (
        Sample(call=lambda f, x, own: f(x, -0.5, 0.5)),
        Sample(of="*relu6* nn.ReLU6*"),
        Sample(of="nn.Hardtanh*", init=(-0.5, 0.5)),
        Sample(of="*.clamp_m?? *.clamp_m??_ *.clamp_m*.default", call=lambda f, x, own: f(x, 0.25)),
        Sample(of="torch.clamp .clamp", call=lambda f, x, own: f(x, max=0.5)),
        Sample(
            of="*.clamp *.clip aten.*.Tensor",
            own={"weight": (8,)},
            call=lambda f, x, own: f(x, own.weight),
            status="float",
            reason="bounds are tensors",
        ),
    ),
    "max_pool": (
        *_pool(of="nn.Max*?d [Ftp]*.max_pool?d aten.max_pool?d.default", size=2),
        # in ATen these always return indices
        *_pool(of="nn.Adaptive*?d F.adaptive_max_pool?d", size=2, exported="max_pool slice"),
        *(
            Sample(
                of=f"*max_pool{dim}d_with_indices* packet.adapt*{dim}d aten.adapt*{dim}d*",
                layout=layout,
                call=lambda f, x, own, dim=dim: f(x, [2] * dim)[0],
                also="slice",
            )
            for dim, layout in BY_DIM.items()
        ),
        Sample(
            of="nn.*MaxPool2d",
            init=(2,),
            settings={"return_indices": True},
            use=lambda f, x, own: f(x)[0],
            also="slice",
        ),
        Sample(
            of="F.*max_pool2d",
            call=lambda f, x, own: (lambda pair: pair[0] + pair[1])(f(x, 2, return_indices=True)),
            also="slice add",
            status="float",
            reason="indices are used",
        ),
    ),
    "interpolate": (
        Sample(of="nn.Upsample", settings={"scale_factor": 2.0}),
        Sample(of="nn.Upsample", settings={"scale_factor": 2.0, "mode": "bicubic"}, **_FLOAT_BICUBIC),
        Sample(of="nn.Upsampling*", settings={"scale_factor": 2.0}),
        Sample(of="F.*", call=lambda f, x, own: f(x, scale_factor=2)),
        Sample(of="F.interpolate", call=lambda f, x, own: f(x, (5, 7), mode="bilinear", antialias=True)),
        Sample(of="F.interpolate", call=lambda f, x, own: f(x, (5, 7), mode="bicubic"), **_FLOAT_BICUBIC),
        *_upsample("upsample_nearest1d", 1),
        *_upsample("upsample_nearest2d", 2),
        *_upsample("upsample_nearest3d", 3),
        *_upsample("_upsample_nearest_exact1d", 1),
        *_upsample("_upsample_nearest_exact2d", 2),
        *_upsample("_upsample_nearest_exact3d", 3),
        *_upsample("upsample_linear1d", 1, False),
        *_upsample("upsample_bilinear2d", 2, False),
        *_upsample("_upsample_bilinear2d_aa", 2, False),
        *_upsample("upsample_trilinear3d", 3, False),
        *_upsample("upsample_bicubic2d", 2, False, **_FLOAT_BICUBIC),
        *_upsample("_upsample_bicubic2d_aa", 2, False, **_FLOAT_BICUBIC),
    ),
    "cat": (
        Sample(call=lambda f, x, own: f([x, own.other(x)])),
        Sample(of="torch.c*cat*", call=lambda f, x, own: f((x, own.other(x)), dim=1)),
        Sample(of="torch.column_stack", layout="rows", call=lambda f, x, own: f((x, own.other(x)))),
    ),
    "stack": (Sample(call=lambda f, x, own: f([x, own.other(x)], 1)),),
    "pad": (
        *_pads(),
        Sample(of="*.pad aten.pad.*", call=lambda f, x, own: f(x, (1, 1, 1, 1))),
        Sample(of="F.pad aten.pad.*", call=lambda f, x, own: f(x, (1, 1), "constant", 1.5), **_VALUE),
        Sample(of="*.pad aten.pad.*", call=lambda f, x, own: f(x, (1, 1, 1, 1), mode="reflect")),
        Sample(of="*.pad aten.pad.*", call=lambda f, x, own: f(x, (1, 1, 1, 1), mode="replicate")),
        Sample(of="*.pad aten.pad.*", call=lambda f, x, own: f(x, (1, 1, 1, 1), mode="circular")),
        Sample(of="*.constant_pad_nd*", call=lambda f, x, own: f(x, (1, 1), 0)),
        Sample(of="*.constant_pad_nd*", call=lambda f, x, own: f(x, (1, 1), 1.5), **_VALUE),
    ),
    "pixel_shuffle": (Sample(call=lambda f, x, own: f(x, 2), init=(2,)),),
    "reshape": (
        Sample(of="nn.Flatten", init=(1,)),
        Sample(of="nn.Unflatten", init=(1, (2, 2))),
        Sample(of="*.reshape *.reshape.* *view *view.default", call=lambda f, x, own: f(x, (-1, 32, 8))),
        Sample(of=".reshape .view", call=lambda f, x, own: f(x, x.shape[0], -1)),
        Sample(of="*.flatten *.flatten.*", call=lambda f, x, own: f(x, 1)),
        Sample(of="*.unflatten *.unflatten.*", call=lambda f, x, own: f(x, 1, (2, 2))),
        Sample(of="*_as *_as.*", call=lambda f, x, own: f(x, own.other(x))),
        Sample(of="*.ravel *.ravel.*"),
        Sample(
            of="aten.view.dtype", call=lambda f, x, own: f(x, torch.float32), status="float", reason="another dtype"
        ),
    ),
    "permute": (
        Sample(call=lambda f, x, own: f(x, 1, 2)),
        Sample(of="*.permute *.permute.*", call=lambda f, x, own: f(x, (0, 2, 1, 3))),
        Sample(of=".permute", call=lambda f, x, own: f(x, 0, 2, 1, 3)),
        Sample(of="*.adjoint *.adjoint.* aten.m?.* packet.m? x.m?"),
        Sample(of="*.t *.t.* *.t_ *.t_.* *.numpy_T* *.matrix_H* x.T x.H", layout="rows"),
        Sample(of="aten.move*.intlist", call=lambda f, x, own: f(x, [1], [2])),
    ),
    "squeeze": (
        Sample(of="*unsqueeze*", call=lambda f, x, own: f(x, 1)),
        Sample(of="*.squeeze *.squeeze_ *.squeeze*.default", layout="single"),
        Sample(of="*.squeeze *.squeeze_ *.dim", layout="single", call=lambda f, x, own: f(x, 1)),
        Sample(of="*.squeeze *.squeeze_ *.dims", layout="single", call=lambda f, x, own: f(x, (1,))),
    ),
    "slice": (
        Sample(of="operator.* .__getitem__", call=lambda f, x, own: f(x, (slice(None), slice(1, None)))),
        Sample(of="operator.* .__getitem__", call=lambda f, x, own: f(x, (Ellipsis, 0, slice(None)))),
        # an export has the unsqueeze that it is
        Sample(of="operator.*", call=lambda f, x, own: f(x, (slice(None), None)), exported="squeeze"),
        Sample(of="operator.*", own={"index": (3,)}, call=lambda f, x, own: f(x, (slice(None), own.index))),
        Sample(of="*.slice *.slice.*", call=lambda f, x, own: f(x, 1, 1, 3)),
        Sample(of="*.select *.select.*", call=lambda f, x, own: f(x, 1, 0)),
        Sample(of="*.narrow *.narrow.default", call=lambda f, x, own: f(x, 1, 1, 2)),
        Sample(
            of="aten.narrow.Tensor", own={"index": ()}, call=lambda f, x, own: f(x, 1, own.index, 2), exportable=False
        ),
        Sample(of="*.index *.index.*", own={"index": (3,)}, call=lambda f, x, own: f(x, [None, own.index])),
        Sample(of="*.index_select*", own={"index": (3,)}, call=lambda f, x, own: f(x, 1, own.index)),
        Sample(of="*.gather*", own={"index": (2, 4, 8, 8)}, call=lambda f, x, own: f(x, 1, own.index)),
    ),
    "split": (
        Sample(call=lambda f, x, own: f(x, 2, 1)[0], also="slice"),
        Sample(of="*.split", call=lambda f, x, own: f(x, [1, 3], dim=1)[1], also="slice"),
        Sample(of="*_with_sizes* *.sizes *.indices", call=lambda f, x, own: f(x, [1, 3], 1)[1], also="slice"),
        Sample(of="*.chunk", call=lambda f, x, own: _joined(f(x, 2, dim=1)), also="slice add"),
        Sample(of="*.unbind *.unbind.*", call=lambda f, x, own: f(x, 1)[0], also="slice"),
        Sample(
            of="*_or_sections",
            own={"index": ()},
            call=lambda f, x, own: f(x, own.index, 1)[0],
            also="slice",
            exportable=False,
        ),
    ),
    "expand": (
        Sample(of="*.expand *.expand.* *.broadcast_to*", call=lambda f, x, own: f(x, (3, 2, 4, 8, 8))),
        Sample(of=".expand", layout="single", call=lambda f, x, own: f(x, -1, 3, -1)),
        Sample(of="*.expand_as*", call=lambda f, x, own: f(x, own.other(x))),
        Sample(of="*.repeat *.repeat.* *.tile*", call=lambda f, x, own: f(x, (1, 2, 1, 1))),
        Sample(of=".repeat .tile", call=lambda f, x, own: f(x, 1, 1, 2, 1)),
        Sample(of="*.repeat_interleave *.self_int", call=lambda f, x, own: f(x, 2, 1)),
        Sample(of="*.self_Tensor", own={"index": (4,)}, call=lambda f, x, own: f(x, own.index, 1), exportable=False),
        Sample(of="*.roll* *.flip*", call=lambda f, x, own: f(x, [1], *([2] if "roll" in str(f) else []))),
    ),
    "identity": (
        Sample(),
        Sample(of="nn.*", also="", status="removed"),
        # cleaned away by the capture
        Sample(of="aten.lift_fresh_copy.default", status="removed"),
        Sample(of="packet.lift_fresh_copy", exported=""),
        Sample(of=".contiguous", call=lambda f, x, own: f(x, memory_format=torch.channels_last)),
    ),
    "cast": (
        Sample(of="packet.to .to", call=lambda f, x, own: f(x, torch.float32), status="removed"),
        Sample(of=".to", call=lambda f, x, own: f(x, x.dtype), status="removed"),
        Sample(of="*.type_as*", call=lambda f, x, own: f(x, own.other(x)), status="removed"),
        # its device is said there too
        Sample(of=".to", call=lambda f, x, own: f(x, own.other(x)), status="removed", exported="cast"),
        Sample(of=".float", status="removed"),
        Sample(of=".to", call=lambda f, x, own: f(x, x.device), status="float", reason="runs in float"),
        Sample(of=".to", call=lambda f, x, own: f(x, torch.float64).float(), status="float", reason="runs in float"),
        Sample(of="aten.to.dtype", call=lambda f, x, own: f(x, torch.float32), status="removed"),
        Sample(of="aten.to.other", call=lambda f, x, own: f(x, own.other(x)), status="removed"),
        Sample(of="aten.to.device", call=lambda f, x, own: f(x, "cpu", torch.float32), status="float"),
        Sample(of="aten.to.dtype_layout", call=lambda f, x, own: f(x, dtype=torch.float32), status="removed"),
        Sample(of="*._to_copy*", call=lambda f, x, own: f(x, dtype=torch.float32), status="removed"),
    ),
    "dropout": (
        Sample(of="nn.Dropout nn.Dropout(*", status="removed"),
        # ATen's are not in the table
        Sample(of="nn.Alpha*", status="removed", exported="alpha_dropout.default"),
        Sample(of="nn.FeatureAlpha*", status="removed", exported="feature_alpha_dropout.default"),
        *(Sample(of=f"nn.*{dim}d*", layout=layout, status="removed") for dim, layout in BY_DIM.items()),
        Sample(of="F.dropout F.dropout(* F.*2d*", call=lambda f, x, own: f(x, 0.5, own.training), status="removed"),
        Sample(of="F.*1d*", layout="signal", call=lambda f, x, own: f(x, 0.5, own.training), status="removed"),
        Sample(of="F.*3d*", layout="volume", call=lambda f, x, own: f(x, 0.5, own.training), status="removed"),
        Sample(call=lambda f, x, own: f(x, 0.5, False), status="removed"),
    ),
}
