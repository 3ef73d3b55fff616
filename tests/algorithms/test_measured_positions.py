"""Positions that are measured: all limits hold, and outputs come nearer to float, frozen or converted."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
import torch
from torch import nn

import fxquant as fq
from fxquant.algorithms import BiasCorrection, MeasuredPositions
from fxquant.numerics.affine import sqnr_db
from fxquant.numerics.positions.problem import Problem
from zoo import ZOO, images


def prepared(name: str, *algorithms: fq.algorithms.Algorithm) -> tuple[nn.Module, nn.Module]:
    entry = ZOO[name]
    model = entry.build().eval()
    made = fq.prepare_fx(model, fq.templates.calibration, entry.inputs(), target="xint8", algorithms=algorithms)
    torch.manual_seed(0)
    return model, fq.calibrate(made, [images(8) for _ in range(2)])


@pytest.mark.parametrize("name", ["squeeze_excite"])
def test_outputs_come_nearer_to_float_and_all_limits_hold(name: str) -> None:
    errors = []
    x = images(16)
    for algorithms in ((BiasCorrection(),), (BiasCorrection(), MeasuredPositions())):
        model, made = prepared(name, *algorithms)
        converted, frozen = fq.convert_fx(made, engine="reference"), fq.freeze(made)
        assert fq.check_target(converted, "xint8") == ()
        with torch.no_grad():
            assert sqnr_db(frozen(x), converted(x)) > 60
            errors.append(sqnr_db(model(x), converted(x)))
    assert errors[1] > errors[0] + 1
    assert any("less error at the outputs" in row.reason for row in fq.explain(converted))


def test_search_begins_at_the_better_of_the_joint_and_the_greedy_solution(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ZOO["squeeze_excite"].build().eval()
    x = images(4)  # as many as are measured
    algorithms = (BiasCorrection(), MeasuredPositions(tries=0))
    made = fq.prepare_fx(model, fq.templates.calibration, (x,), target="xint8", algorithms=algorithms)
    fq.calibrate(made, [x])
    module = sys.modules["fxquant.passes.solve_positions"]
    joint = module.solve

    def coarse(problem: Problem) -> dict[str, int]:
        at = joint(problem)
        moved = ({**at, name: at[name] - 3} for name in at)
        return next(each for each in moved if not problem.broken(each))

    def error(solve: Callable[[Problem], dict[str, int]], repair: Callable[[Problem], dict[str, int]]) -> float:
        monkeypatch.setattr(module, "solve", solve)
        monkeypatch.setattr(module, "repair", repair)
        with torch.no_grad():
            return -sqnr_db(model(x), fq.convert_fx(made, engine="reference")(x))

    best = error(joint, joint)
    assert error(coarse, coarse) > best + 1
    assert error(coarse, joint) == pytest.approx(best, abs=0.01)
    assert error(joint, coarse) == pytest.approx(best, abs=0.01)


def test_without_tries_nothing_moves_and_weights_are_as_they_were() -> None:
    _, made = prepared("mobilenet", MeasuredPositions(tries=0))
    before = {key: value.clone() for key, value in made.state_dict().items()}
    converted = fq.convert_fx(made, engine="reference")
    assert not any("moved from" in row.reason for row in fq.explain(converted))
    assert all(torch.equal(value, before[key]) for key, value in made.state_dict().items())


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(fq.ConfigError, match="samples from 1"):
        MeasuredPositions(samples=0)
