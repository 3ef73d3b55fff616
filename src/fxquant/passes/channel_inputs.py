"""Which depthwise convolutions may have a scale for each channel of their input, and who makes that tensor.

Each of its channels meets its own filters only, so its scale goes into that of the weight: kernels have a number for
each output channel there anyway. Whether the scales differ, what calibration saw decides (observers/channels.py); that
such a tensor has as many of them as channels follows from the model and its rules.
"""

from __future__ import annotations

from torch import Tensor, fx

from fxquant.config.spec import Spec
from fxquant.config.target import Target
from fxquant.graph.nodes import tensor_info
from fxquant.graph.region import Region
from fxquant.ops.table import activation_nodes
from fxquant.passes.candidates import Candidate


def channel_inputs(region: Region, kept: dict[fx.Node, Candidate], target: Target) -> dict[fx.Node, Spec]:
    """Return the spec of the input of each depthwise convolution that may have scales by channel."""
    found = {}
    for node, candidate in kept.items():
        if candidate.op.kind in target.channel_scales and candidate.mode == "static":
            spec = candidate.qconfig.input_spec(0)
            if spec is not None and _is_plain(spec, candidate) and _is_depthwise(region, node, candidate):
                found[node] = by_channel(spec)
    return found


def by_channel(spec: Spec) -> Spec:
    """Return the same grid, with a scale for each channel where that is better."""
    return spec.with_(granularity="per_channel", axis=1, observer="channels")


def _is_plain(spec: Spec, candidate: Candidate) -> bool:
    """Tell whether the range of the input is left to us."""
    searched = spec.observer == "histogram" and spec.learn is None and not spec.dynamic and spec.scale == "float"
    return searched and spec.granularity == "per_tensor" and candidate.qconfig.explicit_input_spec(0) is None


def _is_depthwise(region: Region, node: fx.Node, candidate: Candidate) -> bool:
    module, spec = region.get_submodule(str(node.target)), candidate.weight
    weight, groups = module.weight, module.groups
    if spec is None or spec.granularity != "per_channel" or spec.axis != 0 or not isinstance(weight, Tensor):
        return False
    operand = activation_nodes(node, candidate.op)[0]
    info = tensor_info(operand)
    if info is None or len(info.shape) != weight.dim() or operand.op == "placeholder":
        return False
    return weight.shape[1] == 1 and info.shape[1] == groups and info.shape[1] > 1
