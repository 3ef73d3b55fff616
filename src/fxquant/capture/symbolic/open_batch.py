"""Whether the graph of an exported program, which was exported with one batch size, holds for others.

torch.export fixes sizes that nobody declared dynamic, and most graphs use the batch nowhere. So look: a graph whose
rows are computed one by one gives, for two batches put together, the two results put together.
"""

from __future__ import annotations

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from fxquant.graph import torch_compat

_KEY = "holds_for_any_batch"


def look(module: nn.Module) -> None:
    """Find out, and keep the answer on the module, which is ours: while it is traced, its graph cannot run."""
    if isinstance(module, fx.GraphModule):
        inputs = [node.meta.get("val") for node in module.graph.nodes if node.op == "placeholder"]
        module.__dict__[_KEY] = _holds(module, [value for value in inputs if isinstance(value, Tensor)])


def holds_for_any_batch(module: fx.GraphModule) -> bool:
    """Tell whether rows do not see each other, as far as was looked."""
    return bool(module.__dict__.get(_KEY, False))


def _holds(module: fx.GraphModule, inputs: list[Tensor]) -> bool:
    """`inputs` tell shapes and dtypes. True if dim 0 is the batch of all of them, and rows do not see each other."""
    if any(not t.dim() or any(not isinstance(size, int) for size in t.shape) for t in inputs):
        return False
    if len({t.shape[0] for t in inputs}) != 1:
        return False
    generator = torch.Generator().manual_seed(0)
    one, two = ([_values(tensor, generator) for tensor in inputs] for _ in range(2))
    try:
        with torch.no_grad():
            first, second = _run(module, one), _run(module, two)
            both = _run(module, [torch.cat(pair) for pair in zip(one, two, strict=True)])
    except Exception:  # whatever the graph raises, it does not take another batch
        return False
    if not first or len(both) != len(first):
        return False
    return all(map(_is_joined, first, second, both))


def _values(like: Tensor, generator: torch.Generator) -> Tensor:
    if like.is_floating_point():
        return torch.randn(like.shape, generator=generator).to(like.dtype)
    return torch.randint(0, 2, like.shape, generator=generator).to(like.dtype)


def _is_joined(first: object, second: object, both: object) -> bool:
    if not (isinstance(first, Tensor) and isinstance(second, Tensor) and isinstance(both, Tensor)):
        return False
    if not first.dim() or both.shape != (2 * first.shape[0], *first.shape[1:]):
        return False
    return torch.allclose(both, torch.cat([first, second]), rtol=1e-3, atol=1e-5, equal_nan=True)


def _run(module: fx.GraphModule, inputs: list[Tensor]) -> list[object]:
    return pytree.tree_leaves(_Plain(module).run(*inputs, enable_io_processing=False))


class _Plain(fx.Interpreter):
    """The graph without its guards."""

    def call_module(self, target: fx.node.Target, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        if torch_compat.is_guards(self.fetch_attr(str(target))):
            return None
        return super().call_module(target, args, kwargs)  # type: ignore[arg-type]
