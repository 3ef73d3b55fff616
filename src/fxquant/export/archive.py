"""One self-contained file for a converted model: safetensors, with the graph as JSON in its header.

The tensors are the state_dict of the QDQ graph (int8 weights; tied tensors once). The header holds the graph as
rows, and the stock torch.nn modules that the graph still calls, as class name and plain settings. Reading it runs
nothing from the file: functions and classes are found by name among those that compute on tensors
(core/graph_json.py), and a digest over everything tells an altered file.
"""

from __future__ import annotations

import functools
import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from fxquant.capture import guards
from fxquant.core.graph import Region, RegionState, clone_tree, decode_graph, regions, set_submodule
from fxquant.core.graph_json import from_json, function_name, graph_from_json, graph_to_json, to_json
from fxquant.core.spec import Spec
from fxquant.errors import ArchiveError
from fxquant.modules import attention, cells, transformer
from fxquant.passes import convert_weights
from fxquant.passes.convert_weights import QuantizedWeight

FORMAT = "fxquant-1"
_OWN = (
    *(guards.check_fixed, guards.check_given, guards.check_sizes, guards.unpack, guards.pack, guards.apply_in_place),
    *(convert_weights.dequantize_rows, convert_weights.output_padding),
    *(cells.lstm_gates, cells.gru_gates, cells.rnn_gates, attention.join_masks, transformer.clear_padding),
)
_NOT_SETTINGS = frozenset(nn.Module().__dict__)


@functools.cache
def _own_functions() -> dict[str, Any]:
    return {function_name(function): function for function in _OWN}


def write_archive(model: nn.Module, path: Path) -> None:
    """Write the QDQ form of a converted model."""
    found = list(regions(model))
    if not found or any(region._region.stage != "converted" for _, region in found):
        raise ArchiveError("only a converted model can be saved. Run convert_fx first.")
    boundary = found[0][1]._region.boundary
    if len(found) != 1 or found[0][0] or (boundary is not None and (boundary.inputs or boundary.outputs)):
        parts = ", ".join(repr(path or "<root>") for path, _ in found[:4])
        raise ArchiveError(
            f"the model is not one graph with float inputs and outputs; it has {len(found)} regions ({parts}). "
            "Save it whole with torch.save(model, path)."
        )
    tensors, ties = _tensors(model)
    header = {
        "format": FORMAT,
        "ties": ties,
        "region": _region_to_json(found[0][1]),
    }
    text = json.dumps(header)
    metadata = {"fxquant": text, "digest": _digest(text, tensors)}
    try:
        save_file(tensors, path, metadata)
    except (OSError, SafetensorError) as error:
        raise ArchiveError(f"cannot write {str(path)!r}: {error}") from error


def read_archive(path: Path, float_model: nn.Module | None) -> nn.Module:
    """Read a file written by `write_archive`; the regions are in QDQ form."""
    header, tensors = _read(path)
    tree = nn.Module() if float_model is None else clone_tree(float_model)
    return _region_from_json(header["region"], tensors, tree)


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {key: file.get_tensor(key).clone() for key in file.keys()}  # noqa: SIM118, not a dict
    except FileNotFoundError as error:
        raise ArchiveError(f"there is no file {str(path)!r}.") from error
    except (OSError, SafetensorError) as error:
        raise ArchiveError(f"{str(path)!r} is not a saved model, or it was cut short: {error}") from error
    if "fxquant" not in metadata:
        raise ArchiveError(f"{str(path)!r} is a safetensors file, but not one that fxquant.save wrote.")
    if metadata.get("digest") != _digest(metadata["fxquant"], tensors):
        raise ArchiveError(f"{str(path)!r} was altered after it was saved. Take a fresh copy.")
    header = json.loads(metadata["fxquant"])
    if header.get("format") != FORMAT:
        raise ArchiveError(f"{str(path)!r} has the format {header.get('format')!r}; this version reads {FORMAT!r}.")
    tensors.update({name: tensors[source] for name, source in header["ties"].items()})
    return header, tensors


def _digest(text: str, tensors: dict[str, Tensor]) -> str:
    total = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def _tensors(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors to store, and for each tied one the name it is stored under."""
    tensors: dict[str, Tensor] = {}
    ties: dict[str, str] = {}
    seen: dict[tuple[Any, ...], str] = {}
    for name, value in model.state_dict().items():
        if not isinstance(value, Tensor):
            continue
        place = (value.data_ptr(), value.dtype, tuple(value.shape), tuple(value.stride()))
        if value.numel() and place in seen:
            ties[name] = seen[place]
        else:
            seen[place] = name
            tensors[name] = value.detach().cpu().contiguous().clone()
    return tensors, ties


def _region_to_json(region: Region) -> dict[str, Any]:
    state = region._region
    graph = decode_graph(state.reference) if state.reference is not None else region.graph
    modules = {}
    for node in graph.nodes:
        if node.op == "call_module":
            modules[str(node.target)] = _module_to_json(str(node.target), region.get_submodule(str(node.target)))
        if node.op == "get_attr":
            holder_path = str(node.target).rpartition(".")[0]
            holder = region.get_submodule(holder_path)
            if isinstance(holder, QuantizedWeight):
                modules[holder_path] = {"kind": holder.kind, "spec": to_json(holder.spec)}
    return {
        "name": state.user_class.__name__,
        "method": state.method,
        "num_inputs": state.num_inputs,
        "input_names": list(state.input_names),
        "graph": graph_to_json(graph, _own_functions()),
        "modules": modules,
    }


def _module_to_json(path: str, module: nn.Module) -> dict[str, Any]:
    cls = type(module)
    if getattr(nn, cls.__name__, None) is not cls or module._modules:
        return {"user": f"{cls.__module__}.{cls.__qualname__}"}
    settings = {key: value for key, value in module.__dict__.items() if key not in _NOT_SETTINGS}
    absent = [name for name, value in (*module._parameters.items(), *module._buffers.items()) if value is None]
    return {"class": cls.__name__, "settings": to_json(settings), "training": module.training, "absent": absent}


def _region_from_json(row: dict[str, Any], tensors: dict[str, Tensor], part: nn.Module) -> Region:
    user_class = type(part) if type(part) is not nn.Module else type(row["name"], (nn.Module,), {})
    state = RegionState(
        stage="converted",
        user_class=nn.Module if type(part) is nn.Module else user_class,
        method=row["method"],
        num_inputs=row["num_inputs"],
        input_names=tuple(row["input_names"]),
    )
    region = Region(part, graph_from_json(row["graph"], _own_functions()), state)
    for path, stored in row["modules"].items():
        if "user" in stored:
            _check_user_module(part, path, stored["user"])
        else:
            set_submodule(region, path, _module_from_json(stored))
    _place(region, tensors)
    region.recompile()
    return region.eval()


def _check_user_module(part: nn.Module, path: str, name: str) -> None:
    try:
        part.get_submodule(path)
    except AttributeError:
        raise ArchiveError(
            f"the model calls {path!r}, a module of the class {name}, which is not in the file. "
            "Call load(path, float_model)."
        ) from None


def _module_from_json(stored: dict[str, Any]) -> nn.Module:
    if "spec" in stored:
        spec = from_json(stored["spec"])
        if not isinstance(spec, Spec):
            raise ArchiveError("the file has a weight without a spec.")
        holder = QuantizedWeight(str(stored["kind"]), spec)
        for name in ("weight", "weight_scale", "weight_zero_point", "bias"):
            holder.register_buffer(name, None)
        return holder
    cls = getattr(nn, str(stored["class"]), None)
    if not (isinstance(cls, type) and issubclass(cls, nn.Module)):
        raise ArchiveError(f"the file names the module class {stored['class']!r}, which torch.nn does not have.")
    module = cls.__new__(cls)
    nn.Module.__init__(module)
    module.__dict__.update(from_json(stored["settings"]))
    for name in stored.get("absent", ()):  # a norm without running statistics still has the attribute
        module.register_buffer(str(name), None)
    return module.train(bool(stored["training"]))


def _place(region: Region, tensors: dict[str, Tensor]) -> None:
    """Put the tensors where their names say; a parameter of the float model gives way to a buffer."""
    for name, tensor in tensors.items():
        owner_path, _, leaf = name.rpartition(".")
        try:
            owner = region.get_submodule(owner_path)
        except AttributeError:
            set_submodule(region, owner_path, nn.Module())
            owner = region.get_submodule(owner_path)
        owner._parameters.pop(leaf, None)
        owner._buffers.pop(leaf, None)
        owner.register_buffer(leaf, tensor)
