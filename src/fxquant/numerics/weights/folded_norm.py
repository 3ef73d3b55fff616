"""What a region remembers of a batch norm that was folded into the op before it: how to load a float model's state.

conv.weight, conv.bias, bn.weight, bn.bias, bn.running_mean, bn.running_var   ->   conv.weight, conv.bias
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor, nn

from fxquant.numerics.weights.fold_norm import BatchNorm, fold_norm

_NORM = ("weight", "bias", "running_mean", "running_var")


@dataclass(frozen=True, kw_only=True, slots=True)
class FoldedNorm:
    """A norm that is in the weight and bias of an op now; `named` is the path of the op in the float model."""

    op: str
    named: str
    norm: str
    eps: float
    held: tuple[str, ...]  # the names of the norm's tensors

    def moved(self, op: str) -> FoldedNorm:
        """Return the same with the op at another path."""
        return replace(self, op=op)

    def given(self, state_dict: dict[str, object], prefix: str) -> list[str]:
        """Return the names of the norm's tensors in a state: none in that of a model in which it is folded."""
        names = (f"{prefix}{self.norm}.{name}" for name in (*_NORM, "num_batches_tracked"))
        return [name for name in names if name in state_dict]

    def lacks(self, state_dict: dict[str, object], prefix: str) -> list[str]:
        """Return the names of what it takes to fold the norm, and the state has not."""
        needed = (f"{self.named}.weight", *(f"{self.norm}.{name}" for name in self.held))
        return [name for name in needed if not isinstance(state_dict.get(prefix + name), Tensor)]

    def fold(self, op: nn.Module, state_dict: dict[str, object], prefix: str) -> None:
        """Fold the norm of a float model's state into what that has of the op, in place."""
        norm = BatchNorm(1, self.eps, device="meta")
        norm.__dict__.update(_parameters={}, _buffers={})
        for name in _NORM:
            norm.register_buffer(name, _taken(state_dict, f"{prefix}{self.norm}.{name}"))
        state_dict.pop(f"{prefix}{self.norm}.num_batches_tracked", None)
        weight, bias = (_taken(state_dict, f"{prefix}{self.named}.{name}") for name in ("weight", "bias"))
        assert weight is not None
        new_weight, new_bias = fold_norm(op, weight, bias, norm)
        state_dict.update({f"{prefix}{self.op}.weight": new_weight, f"{prefix}{self.op}.bias": new_bias})


def folded_norm(op: str, path: str, norm: BatchNorm) -> FoldedNorm:
    """Return what to remember of a norm at a path that goes into the op at another."""
    held = tuple(name for name in _NORM if getattr(norm, name) is not None)
    return FoldedNorm(op=op, named=op, norm=path, eps=norm.eps, held=held)


def _taken(state_dict: dict[str, object], name: str) -> Tensor | None:
    found = state_dict.pop(name, None)
    return found.detach() if isinstance(found, Tensor) else None
