"""A graph in which the few modules that do not trace are calls."""

from __future__ import annotations

import dataclasses

from fxquant.capture.attempt import Job, symbolic, symbolic_root
from fxquant.core.graph import Region
from fxquant.core.tree import weighted_parts
from fxquant.errors import CaptureError

FEW, HALF = 0.1, 0.5  # the share of the weighted ops that may be in opaque modules: of the model, of a part of it
_MOST_LEAVES = 8  # modules that one region may leave opaque before it is given up


def with_leaves(
    job: Job, first: CaptureError, most_parts: float, *, root: bool = True
) -> tuple[Region, dict[str, CaptureError]]:
    """A region in which the modules that fail are calls; with the reason for each. Raises if that does not work.

    `most_parts` is the share of the weighted ops that may be inside of them. `root` is False for a part of the model.
    """
    whole = len(weighted_parts(job.model, job.ops))
    opaque: dict[str, CaptureError] = {}
    error = first
    while error.path and len(opaque) < _MOST_LEAVES and error.path not in opaque:
        failing = job.model.get_submodule(error.path)
        if isinstance(failing, Region):
            break
        same = [path for path, module in job.model.named_modules() if type(module) is type(failing)]
        opaque.update(dict.fromkeys((error.path, *same), error))
        if sum(len(weighted_parts(job.model.get_submodule(p), job.ops)) for p in opaque) > most_parts * whole:
            break
        names = (*job.leaf_names, *opaque)
        try:
            region = (symbolic_root if root else symbolic)(dataclasses.replace(job, leaf_names=names))
        except CaptureError as again:
            error = again
        else:
            called = {str(node.target) for node in region.graph.nodes if node.op == "call_module"}
            return region, {path: why for path, why in opaque.items() if path in called}
    raise first
