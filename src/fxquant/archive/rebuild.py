"""From rows and tensors back to a model in QDQ form: regions at their paths in a clone of the float model.

Modules of torch.nn that graphs call are made from their rows. Modules whose Python runs as written are the float
model's own, which have to be of the class that the row names and to hold tensors of the same names and shapes.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fxquant.archive.check_header import DEEPEST_PATH
from fxquant.archive.check_weights import check_weights
from fxquant.archive.code_functions import code_functions
from fxquant.archive.dry_run import dry_run
from fxquant.archive.module_rows import Row, build_grid, build_stock, build_weight, name_of, same_class, stock_class
from fxquant.archive.region_rows import Code, build_region, check_references, is_default
from fxquant.archive.value_json import from_json
from fxquant.capture.canonical.bake import bake_parametrizations
from fxquant.capture.piecewise.functional import Spelling, read_as_weights
from fxquant.errors import ArchiveError
from fxquant.files import Json
from fxquant.graph.clone_tree import clone_tree
from fxquant.graph.lowering import await_first_call
from fxquant.graph.own import copy_model
from fxquant.graph.paths import find_module, join_path, set_submodule
from fxquant.graph.region import regions
from fxquant.graph.torch_compat import is_scripted, script_class
from fxquant.graph.tree import Tree, place_regions, set_tree
from fxquant.modules.substitute import FORMS
from fxquant.numerics.weights.quantized_weight import QuantizedWeight, scale_of
from fxquant.passes.fill_grids import fill_grids

_MOST_PATHS = 10**6
_AGAIN = "Give load the float model that was quantized."


def rebuild(header: Json, tensors: dict[str, Tensor], float_model: nn.Module | None, source: Path) -> nn.Module:
    """Return the model that a header describes. The float model is not changed, and shares nothing with the result."""
    rows: dict[str, Row] = header["modules"]
    if float_model is None:
        _need_no_float_model(rows)
        code: Code = {}
        tree = nn.Module()
    else:
        _check_float_model(float_model)
        code = code_functions(float_model)
        tree = bake_parametrizations(clone_tree(float_model))
    for path, row in rows.items():
        part = find_module(tree, path) if path or float_model is not None else None
        try:
            tree = _put(tree, path, _build(path, row, part, code))
        except ArchiveError as error:
            raise ArchiveError(f"module {path or '<root>'!r}: {error}") from error
    for path, first in header["aliases"].items():
        shared = find_module(tree, first)
        if shared is not None and find_module(tree, path) is not shared:
            set_submodule(tree, path, shared)
    _check_tree(tree)
    _place(tree, rows, tensors, header["parameters"], set(header["unsaved"]))
    for path, row in rows.items():
        module = find_module(tree, path)
        assert module is not None
        if "weights" in row:
            read_as_weights(module, {name: Spelling(*parts) for name, parts in from_json(row["weights"]).items()})
    made = _finish(tree, rows, header["trees"])
    check_weights(made)
    _offer_scales(made)
    for _, region in regions(made):
        region.graph.eliminate_dead_code()  # or one engine would run what another takes out
        fill_grids(region)
    dry_run(made, sum(tensor.nbytes for tensor in tensors.values()))
    await_first_call(made, source)
    return made


def _offer_scales(tree: nn.Module) -> None:
    """Make the scales of weights parameters, as conversion does. In files they are buffers."""
    made: dict[int, Tensor] = {}
    for module in tree.modules():
        scale = module._buffers.get("weight_scale") if isinstance(module, QuantizedWeight) else None
        if isinstance(module, QuantizedWeight) and scale is not None:
            del module._buffers["weight_scale"]
            module.put_scale(made.setdefault(id(scale), scale_of(scale, module.float_dtype)))


def _check_tree(tree: nn.Module) -> None:
    """Raise if a module is inside of itself, or shared so often that a walk over all paths would not end."""
    paths: dict[nn.Module, int] = {}  # how many lead from a module down

    def count(module: nn.Module, above: tuple[str, ...]) -> int:
        if len(above) > DEEPEST_PATH:
            raise ArchiveError(f"the module {'.'.join(above)[:80]!r} is inside of itself, or of too many others.")
        if module not in paths:
            children = ((name, child) for name, child in module._modules.items() if child is not None)
            found = 1 + sum(count(child, (*above, name)) for name, child in children)
            if found > _MOST_PATHS:
                raise ArchiveError(f"the module {'.'.join(above)[:80]!r} has more than {_MOST_PATHS} paths inside.")
            paths[module] = found
        return paths[module]

    count(tree, ())


def needs_no_float_model(rows: dict[str, Row]) -> bool:
    """Tell whether a file is all that a model takes."""
    return all(row["kind"] != "user" and not row.get("code") for row in rows.values())


def _need_no_float_model(rows: dict[str, Row]) -> None:
    foreign = {path: row["class"] for path, row in rows.items() if row["kind"] == "user"}
    if "" in foreign:
        count = sum(row["kind"] == "region" for row in rows.values())
        raise ArchiveError(
            f"the model has {count} region{'s' * (count != 1)} inside Python code (of {foreign['']}), which is not in "
            "the file. Call load(path, float_model)."
        )
    calls = [f"{path!r}, a module of the class {name}" for path, name in foreign.items()]
    calls += [f"{name!r}, of its own code" for row in rows.values() for name in row.get("code", ())]
    if calls:
        raise ArchiveError(f"the model calls {calls[0]}, which is not in the file. Call load(path, float_model).")


def _check_float_model(model: object) -> None:
    if not isinstance(model, nn.Module):
        raise ArchiveError(f"float_model is a {type(model).__name__}, not a module. {_AGAIN}")
    if any(True for _ in regions(model)):
        raise ArchiveError(f"float_model has been captured already. {_AGAIN}")


def _build(path: str, row: Row, part: nn.Module | None, code: Code) -> nn.Module:
    kind = row["kind"]
    if kind == "stock":
        module = build_stock(row)
        if type(part) is type(module):
            module._modules.update(part._modules)
        return module
    if kind == "weight":
        return build_weight(row, part)
    if kind == "grid":
        return build_grid(row)
    if kind == "region":
        if part is not None and type(part) is not nn.Module:
            return build_region(row, _checked(path, row, part), code)
        made = build_region(row, None, code)
        if part is not None:
            made._modules.update(part._modules)
        return made
    if kind != "user":
        raise ArchiveError(f"the file has a module of the unknown kind {kind!r} at {path!r}.")
    if part is None:
        raise ArchiveError(f"the float model has no module {path!r}, the saved one a {row['class']}. {_AGAIN}")
    part = _checked(path, row, part)
    if is_scripted(part):
        return copy.deepcopy(part)
    for name in from_json(row.get("weights", ["dict"])):
        tables: tuple[dict[str, Any], ...] = (part._parameters, part._buffers, part.__dict__)
        if not any(isinstance(table.get(name), Tensor) and table.pop(name) is not None for table in tables):
            raise ArchiveError(f"the float model has no tensor {join_path(path, name)!r}, the saved one has. {_AGAIN}")
    return part


def _checked(path: str, row: Row, part: nn.Module) -> nn.Module:
    """Return the float model's module at a path, or the saved form of it, if its class is the one in the row."""
    wanted = stock_class(row["class"])
    if type(part) in FORMS and getattr(wanted, "stands_for", None) is type(part):
        part = FORMS[type(part)](part)
    cls = script_class(part)
    if not same_class(cls, row["class"]):
        where = f"{path!r} of the float model" if path else "the float model"
        raise ArchiveError(
            f"{where} is a {name_of(cls)}, but a {row['class']} was saved. {_AGAIN} "
            "A custom module has to be there in its quantized form; its tensors come from the file."
        )
    return part


def _put(tree: nn.Module, path: str, module: nn.Module) -> nn.Module:
    if not path:
        return module
    if find_module(tree, path) is not module:
        set_submodule(tree, path, module)
    return tree


def _place(
    tree: nn.Module, rows: dict[str, Row], tensors: dict[str, Tensor], parameters: dict[str, bool], unsaved: set[str]
) -> None:
    """Put the tensors where their names say. In regions all others go; in the user's own modules none may be over."""
    own = {path for path, row in rows.items() if row["kind"] == "user"}
    made: dict[int, nn.Parameter] = {}
    for name in {**dict.fromkeys(parameters), **tensors}:  # parameters in the order of the model, others by name
        tensor = tensors[name]
        owner_path, _, leaf = name.rpartition(".")
        if find_module(tree, owner_path) is None and owner_path not in own:
            set_submodule(tree, owner_path, nn.Module())
        owner = find_module(tree, owner_path)
        assert owner is not None
        if is_scripted(owner):
            _write_scripted(owner, leaf, name, tensor)
            continue
        there = owner._parameters.get(leaf, owner._buffers.get(leaf))
        if owner_path in own and (there is None or there.shape != tensor.shape):
            raise _other_tensor(name, tensor, there)
        tables: list[dict[str, Any]] = [owner._buffers, owner._parameters, owner.__dict__]
        kept = tables.pop(name in parameters)  # what is in its own table keeps its place there
        for table in tables:
            table.pop(leaf, None)
        if name in unsaved and is_default(owner, leaf):
            owner.__dict__[leaf] = tensor  # a buffer would read as what the class has
            continue
        if name in parameters:
            tensor = made.setdefault(id(tensor), nn.Parameter(tensor, parameters[name]))
        kept[leaf] = tensor
        if name in unsaved:
            owner.__dict__["_non_persistent_buffers_set"] = {*owner._non_persistent_buffers_set, leaf}
    for path, module in tree.named_modules():
        if not is_scripted(module):
            _drop_others(module, path, tensors, path in own)


def _write_scripted(owner: nn.Module, leaf: str, name: str, tensor: Tensor) -> None:
    """Write a tensor into one of TorchScript, which takes no other in its place. The module is a copy."""
    table = owner._parameters if leaf in owner._parameters else owner._buffers
    there = dict(table).get(leaf)  # of TorchScript, these have no get
    if there is None or there.shape != tensor.shape or there.dtype != tensor.dtype:
        raise _other_tensor(name, tensor, there)
    there.detach().copy_(tensor)


def _other_tensor(name: str, tensor: Tensor, there: Tensor | None) -> ArchiveError:
    has = "no such tensor" if there is None else f"one of shape {tuple(there.shape)}, {there.dtype}"
    return ArchiveError(
        f"the saved model has a {tensor.dtype} tensor {name!r} of shape {tuple(tensor.shape)}, the float model "
        f"{has}. {_AGAIN}"
    )


def _drop_others(module: nn.Module, path: str, tensors: dict[str, Tensor], is_own: bool) -> None:
    for table in (module._parameters, module._buffers):
        for leaf in [leaf for leaf, tensor in table.items() if tensor is not None]:
            name = join_path(path, leaf)
            if name in tensors or leaf in module._non_persistent_buffers_set:
                continue
            if is_own:
                raise ArchiveError(f"the float model has a tensor {name!r}, which the saved model has not. {_AGAIN}")
            del table[leaf]


def _finish(tree: nn.Module, rows: dict[str, Row], trees: Json) -> nn.Module:
    for path, stored in trees.items():
        part, tree_info = find_module(tree, path), from_json(stored)
        if part is not None and isinstance(tree_info, Tree):
            set_tree(part, tree_info)
    place_regions(tree)
    for module in tree.modules():
        module.training = False
    for path, row in rows.items():
        if row.get("training") and (trained := find_module(tree, path)) is not None:
            trained.training = True
    for path, region in regions(tree):
        check_references(path, region)
        region.recompile()
    return copy_model(tree)
