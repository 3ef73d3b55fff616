"""A stock module as a region by itself: `conv(x)` called from code that does not trace.

The module becomes the region's child `op`, and its tensors keep their names: `conv.weight`, not `conv.op.weight`
(see `Origin.flat`). The graph holds for inputs of any size.
"""

from __future__ import annotations

import torch
from torch import fx, nn

from fxquant.capture.piecewise.calls import Call
from fxquant.capture.reasons import Cause
from fxquant.capture.run_untraced import difference, run
from fxquant.capture.source_lines import reason
from fxquant.errors import CaptureError
from fxquant.graph.clone_tree import clone_tree
from fxquant.graph.hooks import move_hooks
from fxquant.graph.nodes import TensorInfo, record_tensors
from fxquant.graph.region import Region
from fxquant.graph.region_parts import Origin
from fxquant.ops.table import OpTable

CHILD = "op"


def is_weighted_leaf(module: nn.Module, ops: OpTable) -> bool:
    """Tell whether a module is a weighted op of the table whose `forward` is torch's own."""
    op = ops.of(type(module))
    forward = getattr(type(module), "forward", None)  # which the class of TorchScript's modules has for instances alone
    return (
        op is not None
        and op.has_weight
        and "forward" not in module.__dict__
        and getattr(forward, "__module__", "").startswith("torch.nn")
    )


def leaf_region(module: nn.Module, calls: list[Call], ops: OpTable) -> Region:
    """Return the region of one stock module.

    Without calls its input is taken for a float tensor (indices: embeddings).
    """
    inner = clone_tree(module)
    shell = type(module).__new__(type(module))
    shell.__dict__.update(inner.__dict__)
    shell.__dict__.update(_parameters={}, _buffers={}, _modules={CHILD: inner}, _non_persistent_buffers_set=set())
    graph = fx.Graph()
    x = graph.placeholder("input")
    if isinstance(module, nn.EmbeddingBag):
        further = tuple(graph.placeholder(name, default_value=None) for name in ("offsets", "per_sample_weights"))
    else:
        further = (graph.placeholder("output_size"),) if _output_sizes(module, calls) else ()
    y = graph.call_module(CHILD, (x, *further))
    graph.output(y)
    origin = Origin(user_class=type(module), method="leaf", num_inputs=1, input_names=("input",), flat=CHILD)
    region = Region(shell, graph, origin)
    region.training = module.training
    move_hooks(inner, region)  # they run around the region, so that converting does not lose them
    if calls:
        _check(region, module, calls)
    else:
        dtype = module.weight.dtype
        assert isinstance(dtype, torch.dtype)
        op = ops.of(type(module))
        taken = torch.int64 if op is not None and not op.operands else dtype
        x.meta["tensor"], y.meta["tensor"] = TensorInfo(dtype=taken, shape=()), TensorInfo(dtype=dtype, shape=())
    return region


def _output_sizes(module: nn.Module, calls: list[Call]) -> bool:
    """Tell whether a transposed convolution is called with an output size, always or never."""
    given = {len(call.args) > 1 or call.kwargs.get("output_size") is not None for call in calls}
    if len(given) > 1:
        raise CaptureError(f"{type(module).__name__} is called both with and without output_size.")
    return given == {True}


def _check(region: Region, module: nn.Module, calls: list[Call]) -> None:
    try:
        for call in reversed(calls):
            theirs = run(clone_tree(module), call.args, call.kwargs)
            found = difference(run(region, call.args, call.kwargs), theirs)
            if found:
                raise CaptureError(f"{type(module).__name__} computes something else as a region: {found}.")
        kwargs = {key: value for key, value in calls[0].kwargs.items() if value is not None}
        record_tensors(region, calls[0].args, kwargs)
    except CaptureError:
        raise
    except Exception as error:
        why = Cause.AUTOCAST.because() if any(call.cast for call in calls) else None
        raise CaptureError(f"{type(module).__name__} does not run as a region: {reason(error)}", why=why) from error
