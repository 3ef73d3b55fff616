"""Better ranges where a model does well, and not yet very well: by what they do at the outputs; they cost no time.

An observer sees one tensor by itself. One pass with gradients tells what each range of a tensor does to the outputs
(attribute.py); those that make less noise are taken together, if the outputs are measured to come nearer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from torch import nn

from fxquant.engines.engine import Engine
from fxquant.errors import StageError
from fxquant.flows.decide import decide
from fxquant.graph.amendments import Amendments
from fxquant.precision.attribute import count_samples
from fxquant.precision.check import Check
from fxquant.precision.sources import SAMPLES, find_sources
from fxquant.precision.steps import better_ranges

log = logging.getLogger("fxquant")

_PREDICTED, _MEASURED = 1.0, 0.5  # dB that ranges have to gain


def with_finer_ranges(
    prepared: nn.Module,
    found: Check,
    batches: Sequence[object],
    *,
    engine: Engine,
    convert: Callable[[nn.Module, Engine], nn.Module],
    measure: Callable[[nn.Module], Check],
) -> nn.Module | None:
    """Return the model with other ranges, if these bring it nearer to float than `found` says it is."""
    few = batches[:1] if count_samples(batches[0]) >= SAMPLES else batches
    names = [row.name for row in found.compared]
    sources = find_sources(prepared, few, engine=engine, amendments=Amendments(), outputs=names, wide=False)
    step = better_ranges(sources)
    if step.gain < _PREDICTED:
        return None
    try:
        made = convert(decide(prepared, engine=engine, amendments=step.amendments), engine)
    except StageError as error:  # a tensor was not watched in a way that another range needs
        log.info("ranges of %s stay as they are: %s", ", ".join(step.names), error)
        return None
    after = measure(made)
    better = after.sqnr - found.sqnr >= _MEASURED and not any(row.broken for row in after.compared)
    return made if better else None
