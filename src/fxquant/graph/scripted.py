"""A converted region for torch.jit.script, which reads source: a graph that calls a trace of the region.

The trace is made with inputs of the sizes, and values of the kinds, that the example inputs had. A region is the whole
model here: inside one, torch.jit.script would put what it gets into the model itself, in place of the region.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn

from fxquant.errors import StageError
from fxquant.graph import torch_compat

if TYPE_CHECKING:
    from fxquant.graph.region import Region
    from fxquant.graph.region_parts import Origin


def traced(region: Region, origin: Origin) -> nn.Module:
    """Return a module whose source torch.jit.script can read, and which computes what the region does."""
    if origin.path:
        raise StageError(_refused(f"the model has graphs inside its own Python, such as {origin.path!r}"))
    graph = fx.Graph()
    inputs: list[fx.Node] = []
    examples = []
    for place, node in enumerate(region.graph.nodes):
        if node.op != "placeholder":
            break
        example = _example(node)
        if example is not None and len(inputs) == place:
            inputs.append(graph.placeholder(str(node.target)))
            examples.append(example)
        elif not node.args:  # it has no default
            raise StageError(_refused(f"argument {str(node.target)!r} is no tensor in the example"))
    graph.output(graph.call_module("traced", tuple(inputs)))
    holder = nn.Module()
    holder.traced = torch_compat.trace(region, tuple(examples))
    return fx.GraphModule(holder, graph, class_name=origin.user_class.__name__).train(region.training)


def _example(placeholder: fx.Node) -> torch.Tensor | None:
    info: Any = placeholder.meta.get("tensor")  # of the example, see nodes.tensor_info, which stands on regions
    if not hasattr(info, "shape"):
        return None
    return torch.zeros(info.shape, dtype=info.dtype, device="cpu")  # zeros are valid indices of anything


def _refused(why: str) -> str:
    return (
        f"torch.jit.script cannot take this model: {why}. Use torch.jit.trace(model, example_inputs), "
        "fxquant.save(model, path), or torch.export.export(model, example_inputs)."
    )
