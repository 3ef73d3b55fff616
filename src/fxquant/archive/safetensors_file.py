"""Write safetensors, the same bytes for the same content: the library's own writer puts metadata in no fixed order."""

from __future__ import annotations

import json
from typing import IO, Any

import torch
from torch import Tensor

from fxquant.errors import ArchiveError

_NAMES = {
    **{torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16", torch.int32: "I32"},
    **{torch.int64: "I64", torch.uint16: "U16", torch.uint32: "U32", torch.uint64: "U64", torch.float16: "F16"},
    **{torch.bfloat16: "BF16", torch.float32: "F32", torch.float64: "F64", torch.complex64: "C64"},
}


def write_safetensors(file: IO[bytes], tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Eight bytes for the length of the header, the header as JSON, the tensors; larger dtypes first, for alignment."""
    header: dict[str, Any] = {"__metadata__": metadata}
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    end = 0
    for name in order:
        tensor = tensors[name]
        if tensor.dtype not in _NAMES:
            raise ArchiveError(f"the tensor {name!r} is {tensor.dtype}, which cannot be stored.")
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for name in order:
        file.write(tensors[name].contiguous().reshape(-1).view(torch.uint8).numpy().data)
