"""From one calibration, any op can be lifted, and any alone be quantized."""

from __future__ import annotations

import functools
from typing import Any

import pytest

import fxquant as fq
from fxquant.flows.decide import decide
from fxquant.ops.table import OPS
from fxquant.passes.candidates import same_op
from fxquant.tuning.plan import PlanRules
from fxquant.tuning.space import Unit, find_units
from fxquant.tuning.watch_products import watch_products
from zoo import ZOO


def rules(units: list[Unit]) -> PlanRules:
    plan = fq.Plan().lifted({unit.key: "float" for unit in units})
    return PlanRules(fq.get_default_qconfig_mapping(), functools.partial(same_op, OPS), plan)


@pytest.mark.broad
@pytest.mark.parametrize("name", ["resnet", "squeeze_excite", "densenet", "vision_transformer", "split_chunk_stack"])
@pytest.mark.parametrize("engine", ["onednn", "openvino", "onnxruntime"])
def test_any_op_can_be_lifted_and_any_alone_be_quantized(name: str, engine: Any) -> None:
    entry = ZOO[name]
    prepared = fq.prepare_fx(
        entry.build(), fq.get_default_qconfig_mapping(), entry.inputs(), example_kwargs=entry.kwargs()
    )
    watch_products(prepared)
    prepared(*entry.inputs(), **entry.kwargs())
    units = find_units(prepared, fq.explain(decide(prepared, engine=engine)))
    assert units
    for unit in units:
        others = [each for each in units if each is not unit]
        for lifted in ([unit], others, units[: units.index(unit)], units[units.index(unit) :: 2]):
            decided = decide(prepared, engine=engine, rules=rules(lifted))
            found = {(row.path, row.kind): row.status for row in fq.explain(decided)}
            assert all(found[each.key] == "float" for each in lifted)
