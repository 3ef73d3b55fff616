"""`train_qat`: it trains, keeps the best state, and goes on from a checkpoint bit-equal."""

from __future__ import annotations

import copy
import io
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.errors import CalibrationError, ConfigError, StageError
from zoo import ZOO, images

LSQ = fq.QConfig(
    activation=fq.Spec(bits=4, signed=False, symmetric=False, learn="lsq"),
    weight=fq.Spec(bits=4, granularity="per_channel", learn="lsq"),
)


def batches(count: int = 6) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    found = []
    for _ in range(count):
        labels = torch.randint(0, 10, (8,), generator=generator)
        pictures = torch.randn(8, 3, 16, 16, generator=generator) + labels.reshape(-1, 1, 1, 1) / 3
        found.append((pictures, labels))
    return found


def prepared() -> nn.Module:
    return fq.prepare_qat_fx(ZOO["plain"].build().train(), {"": LSQ}, (images(),))


def test_it_trains_and_keeps_the_best_epoch() -> None:
    scores = iter([0.5, 0.9, 0.1])
    states = []

    def evaluate(model: nn.Module) -> float:
        assert not model.training
        states.append({key: value.clone() for key, value in model.state_dict().items()})
        return next(scores)

    result = fq.train_qat(prepared(), batches(), epochs=3, evaluate=evaluate, progress=False)
    assert result.best == pytest.approx(0.9) and result.history == pytest.approx((0.5, 0.9, 0.1))
    assert all(torch.equal(value, states[1][key]) for key, value in result.model.state_dict().items())


def test_the_loss_falls() -> None:
    history = fq.train_qat(prepared(), batches(), epochs=4, lr=1e-2, progress=False).history
    assert history[-1] > history[0] + 0.1  # negative losses


def test_a_run_goes_on_from_its_checkpoint_bit_equal(tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    path = tmp_path / "run.pt"
    whole = fq.train_qat(prepared(), batches(), epochs=3, progress=False)

    def stop_at_three(model: nn.Module) -> float:
        if path.exists() and len(torch.load(path, weights_only=True)["history"]) == 2:
            raise Stop
        return 0.0

    with pytest.raises(Stop):
        fq.train_qat(prepared(), batches(), epochs=3, evaluate=stop_at_three, checkpoint=path, progress=False)
    saved = torch.load(path, weights_only=True)
    saved["history"] = [-10.0, -10.0]  # as the scores of the whole run would have it: the last epoch is the best
    torch.save(saved, path)
    resumed = fq.train_qat(prepared(), batches(), epochs=3, checkpoint=path, progress=False)
    assert resumed.history[-1] == whole.history[-1]
    if whole.best == whole.history[-1]:
        state = resumed.model.state_dict()
        assert all(torch.equal(value, state[key]) for key, value in whole.model.state_dict().items())


def test_learned_ranges_have_a_group_of_their_own() -> None:
    model = prepared()
    weights, vectors, ranges = fq.parameter_groups(model, 1e-3, 1e-4, 1e-2)
    learned = {id(p) for name, p in model.named_parameters() if name.endswith("scale")}
    assert {id(p) for p in ranges["params"]} == learned and ranges["lr"] == 1e-4
    assert ranges["weight_decay"] == vectors["weight_decay"] == 0.0 and weights["weight_decay"] == 1e-2
    assert sum(len(group["params"]) for group in (weights, vectors, ranges)) == len(list(model.parameters()))


def test_what_cannot_be_trained_is_said() -> None:
    with pytest.raises(StageError, match="prepare_qat_fx"):
        fq.train_qat(nn.Linear(2, 2), batches())
    watched = fq.prepare_fx(nn.Linear(2, 2).eval(), fq.get_default_qconfig_mapping(), (torch.randn(1, 2),))
    with pytest.raises(StageError, match=r"one from prepare_fx rounds nothing"):
        fq.train_qat(watched, batches())
    with pytest.raises(ConfigError, match="at least one epoch"):
        fq.train_qat(prepared(), batches(), epochs=0)
    with pytest.raises(CalibrationError, match="no batches"):
        fq.train_qat(prepared(), [])


def test_a_checkpoint_that_is_none_is_an_error_that_names_it(tmp_path: Path) -> None:
    model, data = nn.Sequential(nn.Linear(4, 2)), [(torch.randn(8, 4), torch.randint(0, 2, (8,)))]
    path = tmp_path / "run.pt"

    def train() -> None:
        prepared = fq.prepare_qat_fx(copy.deepcopy(model).train(), fq.get_default_qat_qconfig_mapping(), (data[0][0],))
        fq.train_qat(prepared, data, epochs=1, checkpoint=path, progress=False)

    train()
    whole = path.read_bytes()
    for size in (0, 3, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(fq.ConfigError, match=r"checkpoint .*run\.pt.* cannot be read"):
            train()
    torch.save({"x": 1}, path)
    with pytest.raises(fq.ConfigError, match="is no checkpoint of train_qat"):
        train()
    torch.save({**torch.load(io.BytesIO(whole), weights_only=True), "model": {}}, path)
    with pytest.raises(fq.ConfigError, match="of another model or run: its model"):
        train()
