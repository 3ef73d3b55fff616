"""What capture found out about a region. It stays as it is, through preparation, conversion and files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import nn


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Where a region comes from, and where it stands in the model."""

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
