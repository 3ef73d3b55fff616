"""What is asked of a capture. One request goes through all rungs of the ladder; parts of a model have their own."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass

from torch import nn

from fxquant.capture.canonical.bake import bake_parametrizations, is_baked
from fxquant.capture.inputs import Slot, as_call, bind
from fxquant.capture.piecewise.calls import Call
from fxquant.capture.recording import Recording, Reference
from fxquant.graph.clone_tree import clone_tree
from fxquant.ops.table import OpTable


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A module to capture, its example inputs (`slots`) and the modules that a trace does not look into.

    `recording` has the runs on the example inputs, which all attempts share. `free`: no size of the example is fixed.
    """

    model: nn.Module  # without parametrizations
    slots: tuple[Slot, ...]
    recording: Recording
    has_example: bool
    leaf_names: Collection[str]
    leaf_classes: Collection[type]
    ops: OpTable
    free: bool

    @property
    def args(self) -> tuple[object, ...]:
        return self.recording.args

    @property
    def kwargs(self) -> dict[str, object]:
        return self.recording.kwargs

    @property
    def num_inputs(self) -> int | None:
        if not self.has_example:
            return None
        return sum(isinstance(slot.key, int) and slot.given for slot in self.slots)

    @property
    def input_names(self) -> tuple[str, ...]:
        return tuple(slot.name for slot in self.slots)

    def clone(self) -> nn.Module:
        """Copy the tree, which an attempt may change; its tensors are the model's."""
        return clone_tree(self.model)

    def with_leaves(self, names: Collection[str]) -> Request:
        """Ask for the same with further modules that a trace does not look into."""
        return dataclasses.replace(self, leaf_names=(*self.leaf_names, *names))

    def of_part(self, path: str, module: nn.Module, call: Call) -> Request:
        """Ask for a module inside of the model, which is called like this."""
        below = [name for name in self.leaf_names if name != path and (not path or name.startswith(f"{path}."))]
        slots = bind(module, call.args, call.kwargs)
        return dataclasses.replace(
            self,
            model=module,
            slots=slots,
            recording=Recording(module, *_example(slots), self.recording.ground),
            leaf_names=[name.removeprefix(f"{path}.") for name in below],
        )


def make_request(
    model: nn.Module,
    slots: tuple[Slot, ...],
    *,
    has_example: bool,
    leaf_names: Collection[str],
    leaf_classes: Collection[type],
    ops: OpTable,
    free: bool,
    reference: Reference | None,
) -> Request:
    """Ask for a model of the user's, which is not changed."""
    plain = bake_parametrizations(clone_tree(model)) if is_baked(model) else model
    # in train mode a spectral norm changes its weight with every run, so compare with the baked one
    recording = Recording(plain if model.training else model, *_example(slots), reference=reference)
    return Request(
        model=plain,
        slots=slots,
        recording=recording,
        has_example=has_example,
        leaf_names=leaf_names,
        leaf_classes=leaf_classes,
        ops=ops,
        free=free,
    )


def _example(slots: tuple[Slot, ...]) -> tuple[tuple[object, ...], dict[str, object]]:
    return as_call(slots, {slot.name: slot.value for slot in slots})
