"""A converted model as rows, in the order of its module tree, parents first.

A row for each region, for each module that a graph calls or that holds integers, and for each module whose Python runs
as written. The last ones hold just a class name: the float model has to have them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from torch import Tensor, nn

from fxquant.archive.code_functions import code_functions
from fxquant.archive.module_rows import Row, grid_row, stock_row, user_row, weight_row
from fxquant.archive.region_rows import SELF, region_row
from fxquant.archive.value_json import to_json
from fxquant.capture.piecewise.functional import weight_spellings
from fxquant.errors import ArchiveError
from fxquant.files import Json
from fxquant.graph.lowering import reference_graph
from fxquant.graph.paths import get_attr, join_path
from fxquant.graph.region import Region, kernel_path_of, lowering_of, regions, stage_of
from fxquant.graph.region_parts import Stage
from fxquant.graph.torch_compat import is_scripted
from fxquant.graph.tree import trees
from fxquant.numerics.grid import Grid
from fxquant.numerics.weights.quantized_weight import QuantizedWeight


class Rows:
    """The rows of a model by path, and other paths of modules that stand at several."""

    def __init__(self, model: nn.Module) -> None:
        self.rows: dict[str, Row] = {}
        self.aliases: dict[str, str] = {}
        self.read: dict[str, Tensor] = {}  # what the graphs read, by name
        self.unrun: set[str] = set()  # modules in a graph's tree of which neither it nor code runs anything
        self._seen: dict[nn.Module, str] = {}
        self._code = code_functions(model)
        self._visit(model, "", called=False)
        self.unrun -= set(_prefixes((*self.rows, *self.aliases, *self.read)))
        self.trees = {path: to_json(replace(tree, concrete=())) for path, tree in trees(model).items()}

    def _visit(self, module: nn.Module, path: str, *, called: bool) -> None:
        """`called` tells that a graph calls the module, or a module around it that is built from the file."""
        if module in self._seen:
            self.aliases[path] = self._seen[module]
            return
        self._seen[module] = path
        if isinstance(module, Region):
            self._visit_region(module, path)
            return
        row = stock_row(module) if called else None
        self.rows[path] = row or user_row(module)
        spellings = weight_spellings(module)
        if spellings:
            parts = {name: (each.name, each.args, each.kwargs) for name, each in spellings.items()}
            self.rows[path]["weights"] = to_json(parts)
        for name, child in () if is_scripted(module) else module._modules.items():
            if child is not None:
                self._visit(child, join_path(path, name), called=row is not None)

    def _visit_region(self, region: Region, path: str) -> None:
        graph = reference_graph(region)
        self.rows[path] = region_row(path, region, graph, self._code)
        called = {region.get_submodule(str(node.target)) for node in graph.nodes if node.op == "call_module"}
        reads = [node for node in graph.nodes if node.op == "get_attr"]
        for node in reads:
            if node.target != SELF:
                value = get_attr(region, str(node.target))
                if not isinstance(value, Tensor):
                    raise ArchiveError(
                        f"the graph reads {node.target!r}, a {type(value).__name__}, which cannot be stored."
                    )
                self.read[join_path(path, str(node.target))] = value
        in_code = bool(path) or any(node.target == SELF for node in reads)
        self._visit_inside(region, path, called, in_code)

    def _visit_inside(self, module: nn.Module, path: str, called: set[nn.Module], in_code: bool) -> None:
        """What a graph stands for needs no row of its own, unless code around it may call the region in another way."""
        for name, child in children(module):
            at = join_path(path, name)
            if child in called or isinstance(child, Region):
                self._visit(child, at, called=True)
            elif child in self._seen:
                self.aliases[at] = self._seen[child]
            else:
                self._seen[child] = at
                row = weight_row(child) if isinstance(child, QuantizedWeight) else None
                row = grid_row(child) if isinstance(child, Grid) else row
                if row is None and in_code:
                    row = stock_row(child)
                if row is not None:
                    self.rows[at] = row
                elif not in_code:
                    self.unrun.add(at)
                self._visit_inside(child, at, called, in_code)


def _prefixes(names: Iterable[str]) -> Iterator[str]:
    """Yield the paths of all modules around what goes by these names."""
    for name in names:
        while name := name.rpartition(".")[0]:
            yield name


def children(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the children of a module; of a region without the kernels that it was lowered to."""
    kernels = kernel_path_of(module) if isinstance(module, Region) else ""
    for name, child in module._modules.items():
        if child is not None and (not kernels or name != kernels):
            yield name, child


def stored_tensors(model: nn.Module, rows: Rows) -> Iterator[tuple[str, Tensor, str]]:
    """Name, tensor, and kind: "parameter", "buffer" or "unsaved" (a buffer that is in no state_dict).

    Buffers of that last kind are stored if a graph needs them; code that runs as written makes its own. Of modules
    that nothing runs, only what graphs read is stored.
    """
    found: set[str] = set()
    seen: set[nn.Module] = set()

    def walk(module: nn.Module, path: str) -> Iterator[tuple[str, Tensor, str]]:
        if module in seen:
            return
        seen.add(module)
        built = rows.rows.get(path, {}).get("kind") == "stock"
        for table, kind in ((module._parameters, "parameter"), (module._buffers, "buffer")):
            for own, tensor in table.items():
                kept = own not in module._non_persistent_buffers_set
                name = join_path(path, own)
                if tensor is not None and (kept or built) and (path not in rows.unrun or name in rows.read):
                    found.add(name)
                    yield name, tensor, "unsaved" if not kept else "buffer" if _is_scale(module, own) else kind
        for step, child in children(module):
            yield from walk(child, join_path(path, step))

    yield from walk(model, "")
    for name, tensor in rows.read.items():
        if name not in found:
            yield name, tensor, "unsaved"


def _is_scale(module: nn.Module, name: str) -> bool:
    """Tell whether a tensor is the scale of a weight: files have it as a buffer, whatever it is in the model."""
    return isinstance(module, QuantizedWeight) and name == "weight_scale"


def header_of(model: nn.Module) -> tuple[Json, Rows]:
    """Return what the file says of a model besides its tensors."""
    found = list(regions(model))
    if not found or any(stage_of(region) is not Stage.CONVERTED for _, region in found):
        raise ArchiveError("only a converted model can be saved. Run convert_fx first.")
    for _, region in found:
        lowering_of(region).ready(region)
    rows = Rows(model)
    return {"modules": rows.rows, "aliases": rows.aliases, "trees": rows.trees}, rows
