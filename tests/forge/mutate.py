"""Random changes of a file: one to three places in its header or tensors."""

from __future__ import annotations

import copy
import random
from typing import Any

import torch

from forge.files import File

_WORDS = (
    *("torch.relu", "torch.matmul", "operator.mul", "operator.getitem", "getattr", "max", "list", "torch.cat", "x"),
    *("torch.ops.aten.add.Tensor", "torch.ops.aten.select.int", "torch.nn.functional.pad", "torch.conv2d", "reshape"),
    *("tuple", "list", "dict", "node", "value", "torch", "float", "slice", "function", "device", "ellipsis", "cuda"),
    *("call_method", "call_module", "get_attr", "placeholder", "output", "repeat", "expand", "view", "transpose", ""),
    *("__class__", "forward", "0.weight", "weight", "same", "float64", "int8", "uint8", "bool", "complex64", "_self"),
)
_NUMBERS = (0, 1, -1, 2, 3, 7, 127, 128, -128, 255, 256, 1000, 10**6, 2**31, 2**31 - 1, 2**40, 2**62, -(2**62), 10**18)
_FLOATS = (0.0, -1.0, 1e-30, 1e30, 1e-320, 0.5, 1e308)


def mutate(file: File, rng: random.Random) -> None:
    """Change the file in place."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if rng.random() < 0.2:
            _mutate_tensor(file, rng)
        else:
            mutate_json(file.header, rng)


def _places(value: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    for key in value if isinstance(value, dict) else range(len(value)):
        found.append((value, key))
        if isinstance(value[key], (dict, list)):
            _places(value[key], found)
    return found


def mutate_json(header: Any, rng: random.Random) -> None:
    places = _places(header, [])
    if not places:
        return
    owner, key = rng.choice(places)
    how = rng.random()
    if how < 0.15:
        del owner[key]
    elif how < 0.3:
        other, at = rng.choice(places)
        owner[key] = copy.deepcopy(other[at])
    elif how < 0.4 and isinstance(owner, list):
        owner.insert(key, copy.deepcopy(owner[key]))
    elif how < 0.45 and isinstance(owner, list):
        rng.shuffle(owner)
    elif how < 0.5 and isinstance(owner, dict):
        owner[rng.choice(_WORDS)] = owner.pop(key)
    else:
        owner[key] = _other(owner[key], rng)


def _other(value: Any, rng: random.Random) -> Any:
    if isinstance(value, bool) or value is None:
        return rng.choice((True, False, None, 1, "x"))
    if isinstance(value, int) and rng.random() < 0.9:
        return rng.choice((value + 1, value - 1, value * 2, -value, rng.choice(_NUMBERS)))
    if isinstance(value, float) and rng.random() < 0.9:
        return rng.choice((value * 2, -value, rng.choice(_FLOATS), value * 1e10))
    if isinstance(value, str) and rng.random() < 0.9:
        cut = rng.randrange(len(value) + 1)
        return rng.choice((rng.choice(_WORDS), value[:cut], value + "_", value[:cut] + "'" + value[cut:]))
    return rng.choice((None, 0, 1.5, "x", [], {}, ["tuple"], ["list", 1], ["dict"], True, rng.choice(_NUMBERS)))


def _mutate_tensor(file: File, rng: random.Random) -> None:
    name = rng.choice(sorted(file.tensors))
    tensor = file.tensors[name]
    how = rng.randrange(8)
    if how == 0:
        tensor = tensor.reshape(-1)
    elif how == 1:
        tensor = tensor[:-1] if tensor.dim() else tensor
    elif how == 2:
        tensor = tensor.unsqueeze(0)
    elif how == 3:
        kinds = (torch.int8, torch.uint8, torch.float32, torch.float64, torch.int64, torch.bool, torch.float16)
        tensor = tensor.to(rng.choice(kinds))
    elif how == 4 and tensor.numel():
        tensor = tensor.clone()
        tensor.reshape(-1)[rng.randrange(tensor.numel())] = rng.choice((0, 1, -1, 100))
    elif how == 5:
        del file.tensors[name]
        return
    elif how == 6:
        file.tensors[rng.choice(_WORDS) or "y"] = tensor
        return
    else:
        other = file.tensors[rng.choice(sorted(file.tensors))]
        tensor = other
    file.tensors[name] = tensor
