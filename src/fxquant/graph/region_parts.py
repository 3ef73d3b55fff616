"""What a region knows besides its graph: where it comes from, what was decided about it, how it runs."""

from __future__ import annotations

import copy
import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from torch import fx, nn

from fxquant.graph.preparation import Preparation
from fxquant.graph.strayed import Kept

if TYPE_CHECKING:
    from fxquant.graph.lowering import Lowering

_FX_NAME = "GraphModuleImpl"


class Stage(enum.Enum):
    """How far a region has come."""

    CAPTURED = "captured"
    FUSED = "fused"
    PREPARED = "prepared"
    CONVERTED = "converted"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """What capture found out: where a region comes from, where it stands in the model. It stays as it is."""

    user_class: type[nn.Module] = nn.Module
    class_name: str = ""  # of the user's class, where a file names it and no one gave it
    method: str = "symbolic"
    num_inputs: int | None = None  # positional example inputs, so that calibrate() can drop labels
    input_names: tuple[str, ...] = ()
    path: str = ""  # where the region stands in the model, as the rules name it
    outer: tuple[tuple[str, str], ...] = ()  # (path, class name) of the modules around it, outermost first
    flat: str = ""  # the child whose tensors count as the region's own: a stock module that is a region by itself
    order: int = 0  # ops of the same kind before it in the module around it, for such a child
    moved: Mapping[str, tuple[str, bool]] = field(default_factory=dict)  # name in the float model -> (ours, transposed)
    classes: Mapping[str, type[nn.Module]] = field(default_factory=dict)  # of the user's, where stock modules stand now

    @property
    def said_class(self) -> type:
        """The class that a region inside a model says to be of; see fxquant.modules for forms."""
        found: type = getattr(self.user_class, "stands_for", self.user_class)
        return found

    def importable(self) -> Origin:
        """Return the same with a class that an import finds: fx gives each graph module one of its own, in a function.

        What stands for it is the class that it derives from, which has all but its forward.
        """
        if not issubclass(self.user_class, fx.GraphModule):
            return self
        found = next(cls for cls in self.user_class.__mro__ if cls.__qualname__.rpartition(".")[2] != _FX_NAME)
        return replace(self, user_class=found)


@dataclass(kw_only=True, slots=True)
class RegionParts:
    """Kept by a region as `_region`. Others ask by `origin_of`, `preparation_of`, `lowering_of` and `stage_of`."""

    origin: Origin
    preparation: Preparation = field(default_factory=Preparation)
    lowering: Lowering | None = None  # None until it is converted
    uncovered: str = ""  # why calls ran in float: the graph does not cover them
    strayed: Kept = field(default_factory=dict)  # what attributes were like that such calls have changed
    instead: Callable[..., object] | None = None  # what runs in the place of its graph, see graph/lowering.py
    told: tuple[str, list[str]] | None = None  # while a state_dict is loaded: the prefix of its names, and the errors

    @property
    def stage(self) -> Stage:
        """How far the region has come, by what is known of it."""
        if self.lowering is not None:
            return Stage.CONVERTED
        if self.preparation.quantizer_path or self.preparation.statistics_path:
            return Stage.PREPARED
        return Stage.FUSED if self.preparation.fused else Stage.CAPTURED

    def for_pickle(self) -> RegionParts:
        """Return the same with a class that can be found again by its name."""
        return RegionParts(
            origin=self.origin.importable(),
            preparation=self.preparation,
            lowering=self.lowering,
            uncovered=self.uncovered,
            strayed=self.strayed,
        )

    def __copy__(self) -> RegionParts:
        """Return parts of which a pass may change what it likes: the origin, which nobody changes, is shared."""
        lowering = copy.copy(self.lowering)
        if lowering is not None:
            lowering.filled = copy.copy(lowering.filled)
        preparation = copy.copy(self.preparation)
        return RegionParts(
            origin=self.origin,
            preparation=preparation,
            lowering=lowering,
            uncovered=self.uncovered,
            strayed=self.strayed,
        )
