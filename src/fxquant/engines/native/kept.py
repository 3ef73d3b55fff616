"""Programs on disk, beside their code: what a run needs, as numbers, and the constants.

A model that was read, compiled and found to agree with its graph once runs from there without being read again. The
name of an entry is a digest of all that reading depends on: the graph, the sizes, every tensor and every setting of the
modules that the graph calls, the generators, torch, LLVM and the machine. Entries are read as numbers and bytes, in the
directory of cache.py; what does not fit is not used. Programs with ops of Python are not kept, nor are large ones.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx

from fxquant.engines.made_from import plain_attributes
from fxquant.engines.native.cache import entry_name
from fxquant.engines.native.libraries import SOURCES, Libraries
from fxquant.engines.native.machine import Machine
from fxquant.engines.native.parts import Parts, Sizes
from fxquant.engines.native.program import Program
from fxquant.engines.native.results import Result
from fxquant.engines.native.slots import Import
from fxquant.engines.native.together import takes_rows
from fxquant.engines.native.values import Buffer
from fxquant.graph.region import Region, kernel_path_of

_MOST_BYTES = 32 << 20  # of constants
_DTYPES = {str(dtype): dtype for dtype in (torch.float32, torch.uint8, torch.bool)}
_PLAIN = (int, float, str, bool, type(None), torch.dtype)


def name_of(region: Region, graph: fx.Graph, text: str, machine: Machine) -> str | None:
    """Return the name of a program; None if not all that reading depends on is known. `text` is graph and inputs."""
    settings = [_settings(region, str(node.target)) for node in graph.nodes if node.op == "call_module"]
    state = _digest(region)
    if state is None or any(setting is None for setting in settings):
        return None
    return entry_name(repr(("program", torch.__version__, SOURCES, text, settings, state)), machine)


def _settings(region: Region, path: str) -> tuple[object, ...] | None:
    """Return all that decides what a module does, besides its tensors; None if that is not plain."""
    module = region.get_submodule(path)
    if not type(module).__module__.startswith("torch.nn.modules.") or module._modules:
        return None
    found = {name: value for name, value in module.__dict__.items() if not name.startswith("_")}
    if not all(_is_plain(value) for value in found.values()):
        return None
    return type(module).__qualname__, path, sorted(found.items())


def _is_plain(value: object) -> bool:
    return all(map(_is_plain, value)) if isinstance(value, tuple) else type(value) in _PLAIN


def _digest(region: Region) -> str | None:
    if any("parametrizations" in module._modules for module in region.modules()):
        return None  # code makes some of the tensors of others
    total = hashlib.sha256()
    for name, tensor in _tensors(region):
        if not tensor.is_cpu or tensor.layout is not torch.strided or tensor.is_quantized:
            return None
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        total.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def _tensors(region: Region) -> Iterator[tuple[str, Tensor]]:
    kernels = kernel_path_of(region)
    for path, module in region.named_modules():
        if kernels and path.partition(".")[0] == kernels:
            continue
        tables: tuple[Mapping[str, Tensor | None], ...] = (module._parameters, module._buffers)
        for table in tables:
            yield from ((f"{path}.{name}", tensor) for name, tensor in table.items() if tensor is not None)
        yield from ((f"{path}.{name}", module.__dict__[name]) for name in plain_attributes(module))


def keep(libraries: Libraries, name: str | None, program: Program) -> None:
    """Keep a program that was found to agree with its graph."""
    made = set().union(*({result.node for result in each} for each in program.results.values()))
    plain = not (program.outside or program.fixed or program.checks or program.whole)
    if name is None or not plain or not made.issuperset(program.output.all_input_nodes):
        return
    if program.constants.nbytes > _MOST_BYTES or libraries.cache.directory is None:
        return
    places = {node: place for place, node in enumerate(program.placeholders)}
    if not all(given.node in places for each in program.imports.values() for _, given in each):
        return
    numbers = {
        "code": program.name,
        "levels": program.levels,
        "sizes": asdict(program.sizes),
        "signed": program.signed,
        "slots": program.slots,
        "by_row": takes_rows(program.region, program.graph),
        "imports": [
            [level, slot, places[given.node], given.dims, str(given.dtype), given.channels_last, given.same]
            for level, each in program.imports.items()
            for slot, given in each
        ],
        "results": [
            [level, each.node.name, each.slot, each.sizes, str(each.dtype), each.axis, each.back, each.order]
            for level, found in program.results.items()
            for each in found
        ],
    }
    libraries.cache.store(name, json.dumps(numbers).encode() + b"\n" + program.constants.tobytes())


def load(libraries: Libraries, name: str | None, region: Region, graph: fx.Graph, machine: Machine) -> Program | None:
    """Return the program of a graph, if it is kept."""
    found = None if name is None else libraries.cache.load(name)
    if found is None:
        return None
    line, _, constants = found.partition(b"\n")
    try:
        numbers = json.loads(line)
        library = libraries.of_name(numbers["code"], machine)
        parts = _parts(numbers, graph)
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    if library is None:
        return None
    code = (numbers["code"], library, np.frombuffer(constants, np.uint8))
    return Program.from_parts(region, graph, machine, code, parts)


def _parts(numbers: dict[str, object], graph: fx.Graph) -> Parts:
    nodes, given = {node.name: node for node in graph.nodes}, graph.find_nodes(op="placeholder")
    levels, sizes = numbers["levels"], numbers["sizes"]
    if not isinstance(levels, list) or not isinstance(sizes, dict) or set(sizes) != {f.name for f in fields(Sizes)}:
        raise ValueError("not a program")
    imports: dict[int, list[tuple[int, Import]]] = {level: [] for level in levels}
    results: dict[int, list[Result]] = {level: [] for level in levels}
    for level, slot, place, dims, dtype, last, same in _rows(numbers["imports"]):
        buffer = Buffer(dtype="f32" if dtype == str(torch.float32) else "u8", size=0, space="slot", slot=slot)
        kind = _DTYPES[dtype]
        one = Import(
            node=given[place], buffer=buffer, dims=tuple(dims), dtype=kind, channels_last=bool(last), same=bool(same)
        )
        imports[level].append((slot, one))
    for level, node, slot, dims, dtype, axis, back, order in _rows(numbers["results"]):
        whole = None if back is None else tuple(back)
        made = Result(nodes[node], slot=slot, sizes=tuple(dims), dtype=_DTYPES[dtype], axis=axis, back=whole)
        made.order = tuple(order)
        results[level].append(made)
    slots = numbers["slots"]
    if type(slots) is not int:
        raise TypeError(slots)
    return Parts(
        levels=levels,
        sizes=Sizes(**sizes),
        signed=bool(numbers["signed"]),
        slots=slots,
        imports=imports,
        results=results,
        by_row=bool(numbers["by_row"]),
    )


def _rows(found: object) -> list[Any]:
    if not isinstance(found, list):
        raise TypeError(found)
    return found
