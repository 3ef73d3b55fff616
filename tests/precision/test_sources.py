"""The noise of rounded tensors at the outputs, also where a model has more of them than other grids are tried for."""

from __future__ import annotations

import pytest

import fxquant as fq
from fxquant.engines.table import as_engine
from fxquant.graph.amendments import Amendments
from fxquant.precision import sources
from fxquant.precision.attribute import NOW
from zoo import ZOO


def test_grids_of_the_worst_are_measured_through_all_that_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = ZOO["resnet"]
    inputs = entry.inputs()
    prepared = fq.prepare_fx(entry.build().eval(), fq.get_default_qconfig_mapping(), inputs)
    fq.calibrate(prepared, [inputs])
    monkeypatch.setattr(sources, "MATTERS", 0.0)
    found = {}
    for most in (1000, 2):
        monkeypatch.setattr(sources, "LOOKED_AT", most)
        found[most] = sources.find_sources(
            prepared,
            [inputs],
            engine=as_engine("reference"),
            amendments=Amendments(),
            outputs=["output"],
            wide=False,
        )
    tried = [[source for source in each if len(source.noise) > 1] for each in found.values()]
    assert len(tried[0]) > len(tried[1]) == 2
    whole = {source.name: source.noise for source in tried[0]}
    for source in tried[1]:
        assert source.noise[NOW] > 0 and source.noise == pytest.approx(whole[source.name], rel=1e-4)
