"""What a file says that has no meaning here is a note."""

from __future__ import annotations

from typing import Any

import pytest

from fxquant.config_file import read_conf


@pytest.mark.parametrize(
    ("section", "where"),
    [
        ({"device": "gpu"}, "device"),
        ({"model": {"framework": "tensorflow", "inputs": "a, b"}}, "model.inputs"),
        ({"quantization": {"calibration": {"sampling_size": "100, 200"}}}, "sampling_size"),
        ({"quantization": {"advance": {"bias_correction": "weight_empirical"}}}, "bias_correction"),
        ({"tuning": {"strategy": {"name": "tpe"}}}, "strategy.name"),
        ({"tuning": {"strategy": {"name": "sigopt", "sigopt_api_token": "x"}}}, "sigopt"),
        ({"tuning": {"objective": "footprint"}}, "objective"),
        ({"pruning": {"approach": {}}}, "pruning"),
    ],
)
def test_what_has_no_meaning_here_is_a_note(section: dict[str, Any], where: str) -> None:
    _, notes = read_conf({"model": {"name": "m"}, **section})
    assert any(where in note for note in notes)


@pytest.mark.parametrize(
    ("section", "note"),
    [
        ({"tuning": {"strategy": "tpe"}}, "tuning.strategy.name: 'tpe' is read as 'bayesian'."),
        ({"tuning": {"objective": "footprint"}}, "tuning.objective: 'footprint' is read as 'modelsize'."),
        (
            {"quantization": {"calibration": {"sampling_size": "100 200"}}},
            "quantization.calibration.sampling_size: [100, 200] is read as 200.",
        ),
        (
            {"quantization": {"op_wise": {"conv": {"weight": {"scheme": "asym_float"}}}}},
            "quantization: scheme: 'asym_float' is read as 'asym'.",
        ),
    ],
)
def test_what_has_another_meaning_here_says_which(section: dict[str, Any], note: str) -> None:
    assert read_conf({"model": {"name": "m"}, **section})[1] == (note,)
