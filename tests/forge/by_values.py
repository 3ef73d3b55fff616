"""Crafted files that give ops numbers read from the values of tensors, and many operands at once."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from forge.files import Change, File, X
from forge.growth import rows

_ATEN = "torch.ops.aten"
_N = ["node", "n"]
_SQUARE, _ROW, _FIELD, _INDEX = (["node", name] for name in ("square", "row", "field", "index"))
_BOTH, _ONES, _HALVES = ["list", _N, _N], ["list", 1, 1], ["list", 2, 2]
_INFO = ["dict", ["dtype", ["torch", "float32"]], ["shape", ["tuple", 1]]]
_CALLS: dict[str, tuple[list[Any], Any]] = {  # the arguments, and the number
    "torch.grid_sampler": ([X, _FIELD, _N, 0, False], 5),  # writes nothing in an unknown mode
    f"{_ATEN}.grid_sampler_2d.default": ([X, _FIELD, 0, _N, False], 7),
    f"{_ATEN}.upsample_nearest2d.default": ([_SQUARE, _BOTH], 30_000),
    f"{_ATEN}.upsample_nearest2d.vec": ([_SQUARE, _BOTH, None], 30_000),
    f"{_ATEN}.upsample_bilinear2d.default": ([_SQUARE, _BOTH, False], 30_000),
    f"{_ATEN}.upsample_bicubic2d.default": ([_SQUARE, _BOTH, False], 30_000),
    f"{_ATEN}._upsample_nearest_exact2d.default": ([_SQUARE, _BOTH], 30_000),
    f"{_ATEN}._upsample_bilinear2d_aa.default": ([_SQUARE, _BOTH, False], 30_000),
    f"{_ATEN}._adaptive_avg_pool2d.default": ([_SQUARE, _BOTH], 30_000),
    f"{_ATEN}.replication_pad2d.default": ([_SQUARE, ["list", _N, _N, _N, _N]], 15_000),
    "torch._C._fft.fft_fft": ([_ROW, _N], 7 * 10**8),
    f"{_ATEN}.fft_fft2.default": ([_SQUARE, _BOTH], 20_000),
    f"{_ATEN}.fft_irfft.default": ([_ROW, _N], 9 * 10**8),
    "torch.diagflat": ([_ROW, _N], 30_000),
    "torch.diag": ([_ROW, _N], 30_000),
    f"{_ATEN}.im2col.default": ([_SQUARE, _HALVES, _ONES, _BOTH, _ONES], 8000),
    "torch.nn.functional.unfold": ([_SQUARE, 2, 1, _N], 8000),
    f"{_ATEN}.max_unpool2d.default": ([_SQUARE, _INDEX, _BOTH], 30_000),
    f"{_ATEN}.affine_grid_generator.default": ([["node", "theta"], ["list", 1, 1, _N, _N], False], 20_000),
    f"{_ATEN}.expand_copy.default": ([_ROW, ["list", _N]], 3 * 10**9),
    f"{_ATEN}.convolution.default": ([_SQUARE, _SQUARE, None, _ONES, _BOTH, _ONES, False, ["list", 0, 0], 1], 15_000),
    "torch.conv2d": ([_SQUARE, _SQUARE, None, 1, _N], 15_000),
    f"{_ATEN}.normal.float_float": ([0.0, 1.0, ["list", _N]], 3 * 10**9),
    ".unfold": ([_ROW, 0, 1, _N], 0),
    "torch.tensor_split": ([X, _N], 2 * 10**8),
    "torch.nn.functional.local_response_norm": ([X, _N], 10**9),
    "torch.pixel_shuffle": ([X, _N], 0),
    "torch.kthvalue": ([_ROW, _N], -5),
    "torch.select": ([_ROW, 0, _N], -(2**63)),
    "torch.narrow": ([_ROW, 0, _N, 1], -(2**63)),
    "torch.roll": ([X, _N, 0], -(2**63)),
    "torch.diagonal": ([_FIELD, _N], -(2**63)),
    "torch.split": ([X, _N], 0),
}
_OPERANDS = {
    "torch._C._linalg.linalg_multi_dot": ["list"],
    "torch.functional.chain_matmul": [],
    f"{_ATEN}.meshgrid.default": ["list"],
}


def by_values() -> Iterator[tuple[str, str, Change]]:
    """(name, base file, change)."""
    for target, (args, value) in _CALLS.items():
        for how in (".item", "", "int", "math.floor", "operator.index"):
            name = f"{target} by {how or 'a tensor'}"
            yield name, "conv", partial(_by_value, target=target, args=args, value=value, how=how)
    for target, form in _OPERANDS.items():
        yield f"{target} of many", "conv", partial(_of_many, target=target, form=form)
    for target, args in {"operator.mul": [["list", 1], 100_000], ".tolist": [["node", "long"]]}.items():
        yield f"many of {target}", "conv", partial(_many, target=target, args=args)
    yield "dimensions", "conv", _dimensions


def _by_value(file: File, target: str, args: list[Any], value: Any, how: str) -> None:
    file.tensors.update(
        evil_value=torch.tensor(value),
        evil_square=torch.ones(1, 1, 4, 4),
        evil_row=torch.ones(1),
        evil_field=torch.zeros(2, 8, 8, 2),
        evil_index=torch.zeros(1, 1, 4, 4, dtype=torch.int64),
        evil_theta=torch.zeros(1, 2, 3),
    )
    names = ("square", "row", "field", "index", "theta")
    number = [("n", "@evil_value", [])]
    if how:
        number = [("t", "@evil_value", []), ("n", how, [["node", "t"]])]
    rows(file, *number, *((name, f"@evil_{name}", []) for name in names), ("k", target, args))
    made = next(row for row in file.graph if row[1] == "k")
    made[5] = ["dict", ["tensor", ["value", "TensorInfo", _INFO]]]


def _of_many(file: File, target: str, form: list[str]) -> None:
    """As many operands as take gigabytes for each square."""
    file.tensors["evil"] = torch.ones(1, 1)
    many = [["node", "one"]] * 30_000
    rows(file, ("one", "@evil", []), ("made", target, [[*form, *many]] if form else many))


def _many(file: File, target: str, args: list[Any]) -> None:
    file.tensors["evil"] = torch.ones(99_000)
    names = [f"m{index}" for index in range(6000)]
    rows(file, ("long", "@evil", []), *((name, target, args) for name in names))
    file.graph[-1][3] = ["tuple", ["list", *(["node", name] for name in names)]]


def _dimensions(file: File) -> None:
    file.tensors["evil"] = torch.ones(1)
    rows(file, ("one", "@evil", []), ("made", ".view", [["node", "one"], ["list", *[1] * 90_000]]))
