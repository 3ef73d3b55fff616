"""What an ONNX file says of itself: names of its outputs from what the model returns, producer, metadata."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.metadata import version

import onnx_ir as ir
from torch.utils._pytree import tree_flatten_with_path

from fxquant.errors import ConfigError
from fxquant.export.onnx.signature import Signature


def describe(model: ir.Model, signature: Signature, metadata: Mapping[str, str] | None) -> None:
    """Name the outputs and write the metadata, in place."""
    taken = {value.name for node in model.graph for value in node.outputs} | {v.name for v in model.graph.inputs}
    for value, name in zip(model.graph.outputs, _names(signature), strict=False):
        if name == value.name or (name not in taken and name not in model.graph.initializers):
            value.name = name
    model.producer_name, model.producer_version = "fxquant", version("fxquant")
    if metadata is not None and not isinstance(metadata, Mapping):
        raise ConfigError(f"metadata={metadata!r:.80}: give a dict of strings.")
    for key, text in (metadata or {}).items():
        if not isinstance(key, str) or not isinstance(text, str):
            raise ConfigError(f"metadata={{{key!r}: {text!r}}}: ONNX holds strings only.")
        model.metadata_props[key] = text


def _names(signature: Signature) -> Iterator[str]:
    """`output`, or the key in a dict, or `output_0` and so on; parts of containers inside of these by a dot."""
    leaves, _ = tree_flatten_with_path(signature.outputs)
    for path, index in leaves:
        if not isinstance(index, int):
            continue
        keys = [str(getattr(part, "key", getattr(part, "idx", getattr(part, "name", "")))) for part in path]
        if keys and keys[0].isdigit():
            keys[0] = f"output_{keys[0]}"
        yield ".".join(keys) or "output"
