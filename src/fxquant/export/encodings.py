"""A converted model as JSON: its graph, and the grid of every quantized tensor.

    {"format": "fxquant-encodings", "version": 1, "regions": {path: {"nodes": [...], "tensors": {name: encoding}}}}

node       {"name", "op", "module", "inputs"}       of the QDQ graph, in order; "module" is the user's path, or ""
encoding   {"of": "weight" | "bias" | "activation", "scale", "zero_point", "bits", "signed", "quant_min", "quant_max",
           "min", "max", "symmetric", "axis", "group_size", "position"}

`scale`, `zero_point`, `min`, `max` and `position` are numbers, or lists with one for each channel (or group).
`position` is p where the scale is 2 ** -p, else null. `min` and `max` are what the ends of the grid stand for.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import torch
from torch import Tensor, fx, nn

from fxquant.config.check_fields import check_arguments
from fxquant.errors import ConfigError
from fxquant.export.reference import reference_of
from fxquant.files import replacing
from fxquant.graph import torch_compat
from fxquant.graph.paths import get_attr
from fxquant.graph.region import Region, regions
from fxquant.passes.convert_weights import dequantize_rows

VERSION = 1
Encoding = dict[str, object]


def export_json(model: nn.Module, path: str | os.PathLike[str]) -> Path:
    """Write the graph of a converted model and the grids of its tensors as JSON (docs/file_format.md).

    Example:
        >>> fq.export_json(fq.quantize(model, loader), "net.json").name
        'net.json'
    """
    check_arguments(export_json, path=path)
    file = Path(path)
    if not file.parent.is_dir():
        raise ConfigError(f"export_json cannot write {str(file)!r}: there is no directory {str(file.parent)!r}.")
    text = json.dumps(encodings(model), indent=1, allow_nan=False)
    with replacing(file, ConfigError) as part:
        part.write_text(text + "\n")
    return file


def encodings(model: nn.Module) -> dict[str, object]:
    """Return the graph of a converted model and the grids of its tensors, as plain values."""
    tree = reference_of(model, "export_json")
    found = {path: {"nodes": _nodes(region), "tensors": _tensors(region)} for path, region in regions(tree)}
    return {"format": "fxquant-encodings", "version": VERSION, "regions": found}


def _nodes(region: Region) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for node in region.graph.nodes:
        scope = node.meta.get("scope") or ()
        spelled = node.target if isinstance(node.target, str) else torch.fx.node._get_qualified_name(node.target)
        rows.append(
            {
                "name": node.name,
                "op": f"{node.op}:{spelled}",
                "module": scope[-1][0] if scope else "",
                "inputs": [source.name for source in node.all_input_nodes],
            }
        )
    return rows


def _tensors(region: Region) -> dict[str, Encoding]:
    found: dict[str, Encoding] = {}
    for node in region.graph.nodes:
        source = node.args[0] if node.args else None
        if not isinstance(source, fx.Node):
            continue
        if node.target in torch_compat.QUANTIZE_OPS and _is_static(node):
            found.setdefault(source.name, {"of": "activation", **encoding(region, node)})
        elif node.target in torch_compat.DEQUANTIZE_OPS and source.op == "get_attr":
            found.setdefault(str(source.target), {"of": "weight", **encoding(region, node)})
        elif node.target is dequantize_rows and source.op == "get_attr" and node.args[3] is None:
            found.setdefault(str(source.target), {"of": "bias", **_bias_encoding(region, node)})
    return found


def _bias_encoding(region: Region, node: fx.Node) -> Encoding:
    """Return the grid of a bias that is stored as integers."""
    integers, scale, zero = (get_attr(region, str(arg.target)) for arg in node.args[:3] if isinstance(arg, fx.Node))
    limits = torch.iinfo(integers.dtype)
    axis = 0 if scale.dim() else None
    return _encoding(scale.double(), zero.double().expand_as(scale), limits.min, limits.max, axis, None)


def _is_static(node: fx.Node) -> bool:
    return not any(isinstance(arg, fx.Node) and arg.op != "get_attr" for arg in node.args[1:])


def encoding(region: Region, node: fx.Node) -> Encoding:
    """Return the grid of a quantize or dequantize node whose numbers are fixed."""
    named = dict(zip((argument.name for argument in node.target._schema.arguments), node.args, strict=False))  # type: ignore[union-attr]
    scale = _values(region, named.get("scales", named.get("scale")))
    given = named.get("zero_points", named.get("zero_point"))
    zero = torch.zeros_like(scale) if given is None else _values(region, given).expand_as(scale)
    low, high = int(named["quant_min"]), int(named["quant_max"])  # type: ignore[arg-type]
    return _encoding(scale, zero, low, high, named.get("axis"), named.get("group_size"))


def _encoding(scale: Tensor, zero: Tensor, low: int, high: int, axis: object, group_size: object) -> Encoding:
    places = torch.log2(scale)
    whole = bool((places == places.round()).all())
    return {
        "scale": _plain(scale),
        "zero_point": _plain(zero.to(torch.int64)),
        "bits": math.ceil(math.log2(high - low + 1)),
        "signed": low < 0,
        "quant_min": low,
        "quant_max": high,
        "min": _plain((low - zero) * scale),
        "max": _plain((high - zero) * scale),
        "symmetric": bool((zero == 0).all()),
        "axis": axis,
        "group_size": group_size,
        "position": _plain((-places).to(torch.int64)) if whole else None,
    }


def _values(region: Region, value: object) -> Tensor:
    if isinstance(value, fx.Node):
        value = get_attr(region, str(value.target))
    return torch.as_tensor(value, dtype=torch.float64)


def _plain(values: Tensor) -> object:
    return values.tolist()
