"""The tensors of a frozen graph that have positions: activations, weights and biases with one power-of-two scale."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass, field

from torch import Tensor, fx

from fxquant.config.spec import Spec
from fxquant.graph.notes import note_of
from fxquant.graph.region import Region
from fxquant.numerics.affine import choose_qparams
from fxquant.numerics.fake_quant import FakeQuant
from fxquant.numerics.positions.costs import activation_cost, position_of, range_at, scale_at, values_cost
from fxquant.numerics.ranges import given_or_own_range
from fxquant.numerics.weights.qat_block import QatBlock
from fxquant.numerics.weights.weight_range import find_weight_qparams
from fxquant.passes.find_quantizer import quantizer_of

STORED = ("weight ", "bias ")  # begin the names of those


@dataclass
class PositionTensors:
    """The tensors of a region that have positions, by name, as rules come to ask for them."""

    region: Region
    start: dict[str, int] = field(default_factory=dict)
    owner: dict[str, fx.Node] = field(default_factory=dict)
    quantizers: dict[str, FakeQuant] = field(default_factory=dict)
    stored: dict[str, tuple[Tensor, Spec]] = field(default_factory=dict)
    calls: dict[str, list[fx.Node]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.cost = functools.cache(self._cost)

    def activation(self, node: fx.Node | None) -> str | None:
        """Return the tensor that a quantizer's call gives, if its scale may move."""
        quantizer = None if node is None else quantizer_of(self.region, node)
        if node is None or quantizer is None or quantizer.state != "frozen" or quantizer.scale.dim():
            return None
        if quantizer.spec.scale != "pow2" or int(quantizer.zero_point) or quantizer.spec.dynamic:
            return None
        if quantizer.name not in self.start:
            self.start[quantizer.name] = position_of(quantizer.scale)
            self.quantizers[quantizer.name] = quantizer
            source = node.args[0]
            self.owner[quantizer.name] = source if isinstance(source, fx.Node) else node
        return quantizer.name

    def weight(self, node: fx.Node) -> str | None:
        note = note_of(node)
        if note is None or note.weight is None or not _moves(note.weight):
            return None
        module = self.region.get_submodule(str(node.target))
        values = module.weight
        assert isinstance(values, Tensor)
        name = f"weight {id(values)}"
        if name not in self.start:
            if type(module) is QatBlock and module.weight_fq.frozen:
                scale = module.weight_fq.scale
            else:
                scale, _ = find_weight_qparams(values, note.weight, f"{node.target}.weight")
            self._store(name, node, values, note.weight, scale)
        self.calls[name].append(node)
        return name

    def bias(self, node: fx.Node) -> str | None:
        note, module = note_of(node), self.region.get_submodule(str(node.target))
        values = getattr(module, "bias", None)
        if note is None or not isinstance(note.bias, Spec) or not _moves(note.bias) or not isinstance(values, Tensor):
            return None
        name = f"bias {node.target}"
        if name not in self.start:
            scale, _ = choose_qparams(*given_or_own_range(values.detach().float(), note.bias), note.bias)
            self._store(name, node, values, note.bias, scale)
        self.calls[name].append(node)
        return name

    def _store(self, name: str, node: fx.Node, values: Tensor, spec: Spec, scale: Tensor) -> None:
        self.start[name], self.owner[name], self.calls[name] = position_of(scale), node, []
        self.stored[name] = values.detach().float(), spec

    def _cost(self, name: str, place: int) -> float:
        if name in self.quantizers:
            return activation_cost(self.quantizers[name], place)
        return values_cost(*self.stored[name], place)

    def move(self, name: str, place: int) -> None:
        """Give a tensor another scale; that of a weight or bias is in its spec, as a fixed range."""
        if name in self.quantizers:
            quantizer = self.quantizers[name]
            quantizer.scale = scale_at(place).to(quantizer.scale)
            return
        spec = self.stored[name][1]
        fixed = spec.stored().with_(observer="fixed", range=range_at(place, spec), learn=None)
        for node in self.calls[name]:
            note, block = note_of(node), self.region.get_submodule(str(node.target))
            assert note is not None
            if name.startswith("bias "):
                node.meta["note"] = dataclasses.replace(note, bias=fixed)
                if type(block) is QatBlock:
                    block.__dict__["bias_spec"] = fixed
            else:
                node.meta["note"] = dataclasses.replace(note, weight=fixed)
                if type(block) is QatBlock and block.weight_fq.frozen:
                    block.weight_fq.scale = scale_at(place).to(block.weight_fq.scale)


def _moves(spec: Spec) -> bool:
    return spec.scale == "pow2" and spec.symmetric and spec.signed and spec.granularity == "per_tensor"
