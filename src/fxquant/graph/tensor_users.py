"""Who has a tensor of a model: the modules that hold it, and the nodes of its graphs that read it.

A graph calls modules, which read what they hold; a `get_attr` node is another reader:

    h @ self.embed.weight.t()          self.embed(ids)

A pass may change the tensors of a module if that module is the only one that has them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from torch import Tensor, fx, nn

from fxquant.graph.paths import get_attr, join_path
from fxquant.graph.region import Region, origin_of, regions

_READ = "_fxquant_read"  # on a module inside of a region: the graph around that reads what it holds


def count_users(region: Region) -> Counter[int]:
    """Return how many modules hold, and nodes read, each parameter and buffer, by its id."""
    users: Counter[int] = Counter()
    for module in region.modules():
        for tensor in own_tensors(module):
            users[id(tensor)] += 1 + is_read_around(module)
    users.update(id(tensor) for _, tensor in reads(region))
    return users


def own_tensors(module: nn.Module) -> list[Tensor]:
    """Return the parameters and buffers of a module, without those of its children."""
    return [tensor for tensor in (*module._parameters.values(), *module._buffers.values()) if tensor is not None]


def is_sole_user(module: nn.Module, users: Counter[int]) -> bool:
    """Tell whether nothing else has any tensor of this module."""
    return all(users[id(tensor)] <= 1 for tensor in own_tensors(module))


def reads(region: Region) -> Iterator[tuple[fx.Node, Tensor]]:
    """Yield the `get_attr` nodes of a region that read a tensor, with the tensor."""
    for node in region.graph.find_nodes(op="get_attr"):
        tensor = get_attr(region, str(node.target))
        if isinstance(tensor, Tensor):
            yield node, tensor


def reads_inside(region: Region) -> Iterator[tuple[fx.Node, str, nn.Module]]:
    """Yield the nodes that read what a region inside of this one holds, with the module that does and its path."""
    for node in region.graph.find_nodes(op="get_attr"):
        *steps, _ = str(node.target).split(".")
        module: nn.Module | None = region
        path, inside = "", False
        for step in steps:
            module = None if module is None else module._modules.get(step)
            path, inside = join_path(path, step), inside or isinstance(module, Region)
        if isinstance(module, Region) and origin_of(module).flat:
            path, module = join_path(path, origin_of(module).flat), module._modules[origin_of(module).flat]
        if inside and module is not None:
            yield node, path, module


def mark_read(model: nn.Module) -> None:
    """Mark the modules inside of regions that the graphs around these read tensors of."""
    for _, region in regions(model):
        for _, _, module in reads_inside(region):
            module.__dict__[_READ] = True


def is_read_around(module: nn.Module) -> bool:
    """Tell whether `mark_read` has marked a module."""
    return _READ in module.__dict__
