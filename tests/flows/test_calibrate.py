"""Batches in every form, and clear errors for data that cannot be used."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence
from torch.utils.data import DataLoader, TensorDataset

import fxquant as fq
from fxquant.errors import CalibrationError
from fxquant.flows.calibrate import as_example
from fxquant.graph.region import Region
from fxquant.numerics.affine import sqnr_db

X = torch.randn(4, 8)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 4)

    def forward(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        return self.fc(x)


def prepared() -> Region:
    return fq.prepare_fx(Net().eval(), fq.get_default_qconfig_mapping(), (X,))


FORMS = {
    "tensors": [X, X],
    "with_labels": [(X, torch.zeros(4, dtype=torch.long))],
    "list_batches": [[X, torch.zeros(4)]],
    "dicts": [{"x": X, "labels": torch.zeros(4)}],
    "loader": DataLoader(TensorDataset(X, torch.zeros(4)), batch_size=2),
    "generator": (batch for batch in [X, X]),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_data(form: str) -> None:
    model = prepared()
    assert fq.calibrate(model, FORMS[form]) is model
    assert fq.convert_fx(model)(X).shape == (4, 4)


def test_num_batches_stops_early() -> None:
    model = prepared()
    fq.calibrate(model, [X, X * float("nan")], num_batches=1)


@pytest.mark.parametrize("data", [[], X, {"x": X}, 3], ids=["empty", "tensor", "dict", "number"])
def test_unusable_data(data: object) -> None:
    with pytest.raises(fq.CalibrationError):
        fq.calibrate(prepared(), data)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("batch", "told"),
    [
        (X.numpy(), "torch.from_numpy"),
        ({"pixels": X, "labels": X}, r"a dict with 'pixels', 'labels', and the model takes 'x', 'scale'"),
        ({}, "nothing in it"),
    ],
)
def test_batches_that_a_model_cannot_take(batch: object, told: str) -> None:
    with pytest.raises(fq.CalibrationError, match=told):
        fq.quantize(Net().eval(), [batch])


def test_dicts_for_a_forward_that_takes_any_names() -> None:
    class Any(Net):
        def forward(self, **given: Tensor) -> Tensor:
            return self.fc(given["x"])

    assert fq.quantize(Any().eval(), [{"x": X}])(x=X).shape == (4, 4)


def test_dicts_that_are_the_one_argument() -> None:
    class Sample(Net):
        def forward(self, data: dict[str, Tensor], scale: Tensor | None = None) -> Tensor:
            return self.fc(data["image"])

    model, batch = Sample().eval(), {"image": X, "label": torch.zeros(4)}
    quantized = fq.quantize(model, [batch], engine="reference")
    assert fq.check(model, quantized, [batch]).passed
    later = fq.calibrate(fq.prepare_fx(model, fq.get_default_qconfig_mapping(), (batch,)), [batch])
    assert fq.compare(model, fq.convert_fx(later, engine="reference"), [batch]).worst(1)
    fq.benchmark(quantized, batch, float_model=model, engines=["reference"], seconds=0.001)


def test_wrong_stage() -> None:
    with pytest.raises(fq.StageError, match="plain module"):
        fq.calibrate(Net(), [X])
    with pytest.raises(fq.StageError, match="eval mode"):
        fq.calibrate(prepared().train(), [X])


def test_quantize_takes_one_shot_iterators_and_gives_back_the_mode() -> None:
    model = Net().train()
    seen = fq.quantize(model, (batch for batch in [X, X]))
    assert model.training
    assert not seen.training
    with pytest.raises(fq.CalibrationError, match="no batches"):
        fq.quantize(model, iter([]))
    with pytest.raises(fq.CalibrationError, match=r"is empty: batch 2, \(float32 .* has no samples"):
        fq.quantize(model, [X[:0], (X[:0], torch.zeros(0))])
    assert fq.quantize(model, [X[:0], X], engine="reference")(X).shape == model(X).shape
    with pytest.raises(fq.ConfigError, match="calibration data"):
        fq.quantize(model)
    with pytest.raises(fq.ConfigError, match="mode 'int8' is unknown"):
        fq.quantize(model, [X], mode="int8")  # type: ignore[arg-type]


class Named(nn.Module):
    """Its code has names that globals of this file have, too: of an attribute, and of the prepared model itself."""

    def __init__(self) -> None:
        super().__init__()
        self.seen_by_code = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.seen_by_code(x) if calibrated_here is not x else x


calibrated_here: nn.Module | None = None
seen_by_code: nn.Module | None = None


def test_what_calibration_saw_stays_whatever_globals_are_called() -> None:
    global calibrated_here, seen_by_code
    x = torch.randn(2, 4)
    calibrated_here = seen_by_code = prepared = fq.prepare_fx(
        Named().eval(), fq.get_default_qconfig_mapping("x86"), (x,)
    )
    try:
        fq.calibrate(prepared, [x])
        assert not fq.convert_fx(prepared, engine="reference")(x).isnan().any()
    finally:
        calibrated_here = seen_by_code = None


class Steps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Iterator[Tensor]:
        for _ in range(3):
            x = self.linear(x).relu()
            yield x


def test_a_forward_that_yields_is_run_to_its_end() -> None:
    torch.manual_seed(0)
    x, model = torch.randn(8, 4), Steps().eval()
    quantized = fq.quantize(model, [x])
    with torch.no_grad():
        for expected, found in zip(model(x), quantized(x), strict=True):
            assert sqnr_db(expected, found) > 15


class Sums(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(4, 2), 0

    def forward(self, *given: Tensor) -> Tensor:
        self.calls += 1
        return sum((self.layer(each) for each in given), torch.zeros(()))


class ByPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: Tensor, y: Tensor, /) -> Tensor:
        return cast(Tensor, self.layer(x) * self.layer(y))


@pytest.mark.parametrize("labels", [(), (torch.tensor([1, 0]),)])
def test_forwards_that_take_what_they_get_are_given_all_they_run_with(labels: tuple[Tensor, ...]) -> None:
    for made, count in ((Sums(), 3), (ByPlace(), 2)):
        given = [torch.randn(2, 4) for _ in range(count)]
        quantized = fq.quantize(made.eval(), [(*given, *labels)], engine="reference", precision="int8")
        assert getattr(made, "calls", 0) == 0  # trying leaves no trace
        assert torch.allclose(quantized(*given), made(*given), atol=0.3)


class WithLoss(Net):
    """As models of transformers are: labels add a loss, and the first ones set an attribute."""

    kind: str | None = None

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:  # type: ignore[override]
        found = {"logits": self.fc(x)}
        if labels is not None:
            self.kind = self.kind or "classes"
            found["loss"] = nn.functional.cross_entropy(found["logits"], labels)
        return found


class NeedsLabels(Net):
    def forward(self, x: Tensor, labels: Tensor | None = None) -> Tensor:  # type: ignore[override]
        assert labels is not None
        return self.fc(x) + labels[:, None]  # type: ignore[no-any-return]


def test_labels_of_a_dict_are_left_out_where_the_model_runs_without() -> None:
    batch = {"x": X, "labels": torch.tensor([0, 1, 2, 3])}
    model = WithLoss().eval()
    quantized = fq.quantize(model, [batch, batch])
    assert isinstance(quantized, Region) and set(quantized(x=X)) == {"logits"}
    assert fq.compare(model, quantized, [batch]).output_sqnr > 20 and fq.check(model, quantized, [batch]).passed
    assert fq.quantize(NeedsLabels().eval(), [batch])(**batch).shape == (4, 4)


class Branching(WithLoss):
    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:  # type: ignore[override]
        return super().forward(x if float(x.sum()) < 1e9 else -x, labels)


def test_a_model_in_pieces_takes_labels_and_is_saved(tmp_path: Path) -> None:
    batch = {"x": X, "labels": torch.tensor([0, 1, 2, 3])}
    model = Branching().eval()
    quantized = fq.quantize(model, [batch, batch])
    assert not isinstance(quantized, Region) and "loss" in quantized(**batch)
    loaded = fq.load(fq.save(quantized, tmp_path / "net.fq"), model)
    assert torch.equal(loaded(x=X)["logits"], quantized(x=X)["logits"])


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTM(8, 16)

    def forward(self, packed: PackedSequence) -> Tensor:
        return cast(Tensor, self.cell(packed)[0].data)


@pytest.mark.parametrize("labelled", [True, False])
def test_a_packed_sequence_is_one_value(labelled: bool) -> None:
    packed = pack_padded_sequence(torch.randn(7, 3, 8), torch.tensor([7, 5, 3]))
    model = Packed().eval()
    quantized = fq.quantize(model, [(packed, torch.zeros(3)) if labelled else packed])
    assert sqnr_db(model(packed), quantized(packed)) > 30
    assert fq.check(model, quantized, [packed]).passed


class Streams(nn.Module):
    """Keeps the end of what it saw: in a buffer, or in an attribute, so that it is captured in pieces."""

    def __init__(self, plain: bool) -> None:
        super().__init__()
        self.plain, self.last, self.conv = plain, None, nn.Conv1d(2, 4, 3)
        self.register_buffer("kept", torch.zeros(1, 2, 2))

    def forward(self, x: Tensor) -> Tensor:
        before = self.kept if not self.plain else torch.zeros(1, 2, 2) if self.last is None else self.last
        whole = torch.cat([before, x], -1)
        if self.plain:
            self.last = whole[..., -2:].clone()
        else:
            self.kept = whole[..., -2:].clone()
        return self.conv(whole)


@pytest.mark.parametrize("plain", [False, True], ids=["buffer", "attribute"])
def test_what_a_model_keeps_of_calibration_is_not_in_its_answers(plain: bool) -> None:
    model, data = Streams(plain).eval(), [torch.randn(1, 2, 16) for _ in range(4)]
    prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping("x86"), (data[0],))
    converted = fq.convert_fx(fq.calibrate(prepared, data))
    assert fq.check(model, converted, data).sqnr > 30
    at_once = fq.quantize(model, data, effort="balanced")
    result = fq.benchmark(converted, data[0], float_model=model, engines=["onednn"], seconds=0.001, show=False)
    assert result["float"].timing.median > 0
    assert fq.compare(model, converted, data).output_sqnr > 30
    for each in (model, prepared, converted, at_once):
        assert each.last is None
        assert not each.kept.any()


class Masks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 4)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.fc(x if mask is None else x * mask)


def test_values_that_may_be_inputs_are_not_left_out_in_silence() -> None:
    model, x = Masks().eval(), torch.randn(4, 8)
    with pytest.warns(UserWarning, match="without 'mask'.*example_inputs"):
        assert as_example((x, torch.rand(4, 8)), model) == ((x,), None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        as_example((x, torch.tensor([0, 1, 2, 3])), model)  # labels
        as_example((x, {"boxes": x}), model)  # the model does not run with those
        as_example((x,), model)


class Lengths(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 4)

    def forward(self, x: Tensor, lengths: Tensor | None = None, target: Tensor | None = None) -> object:
        y = self.fc(x)
        if target is not None:
            return y.mean(1), nn.functional.cross_entropy(y.mean(1), target)
        return y.mean(1) if lengths is None else y.sum(1) / lengths.unsqueeze(1)


class Classes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 4)

    def forward(self, x: Tensor, target: Tensor | None = None) -> object:
        y = self.fc(x)
        return y if target is None else nn.functional.cross_entropy(y, target)


def test_whole_numbers_are_inputs_where_outputs_follow_them() -> None:
    x, numbers = torch.randn(4, 8), torch.tensor([1, 2, 3, 0])
    with pytest.warns(UserWarning, match="without 'lengths'.*example_inputs"):
        as_example((x.unsqueeze(1), numbers + 2), Lengths().eval())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert as_example((x, numbers), Classes().eval()) == ((x,), None)  # a loss takes the place of the outputs


def test_examples_may_be_keywords_alone() -> None:
    x = torch.randn(4, 8)
    prepared = fq.prepare_fx(Masks().eval(), fq.get_default_qconfig_mapping(), example_kwargs={"x": x})
    assert fq.convert_fx(fq.calibrate(prepared, [{"x": x}]))(x=x).shape == (4, 4)


@pytest.mark.parametrize("training", [False, True])
def test_a_frozen_model_is_not_calibrated(training: bool) -> None:
    x = torch.randn(4, 8)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)).train(training)
    if training:
        prepared = fq.prepare_qat_fx(model, fq.get_default_qat_qconfig_mapping(), (x,))
    else:
        prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping(), (x,))
    prepared(x)
    with pytest.raises(fq.StageError, match=r"scales are fixed\. Calibrate before fxquant"):
        fq.calibrate(fq.freeze(prepared), [x])


def test_what_is_no_input_says_what_to_give(capfd: pytest.CaptureFixture[str]) -> None:
    x = torch.randn(4, 8)
    model = nn.Sequential(nn.Linear(8, 8), nn.Flatten(1)).eval()
    prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping(), (x,))
    with pytest.raises(fq.CalibrationError, match=r"batch 1, a ndarray, .* torch\.from_numpy"):
        fq.calibrate(prepared, [x.numpy()])
    with pytest.raises(fq.CalibrationError, match="The model takes 'input': give dicts by") as told:
        fq.calibrate(prepared, [{"y": x}])
    assert len(str(told.value)) < 300  # without all the forms that torch's op has
    with pytest.raises(fq.CalibrationError, match="batch 1"):
        fq.calibrate(prepared, [torch.randn(3)])
    assert capfd.readouterr().err == ""  # torch.fx printed the code of the graph


class OfSeveral(nn.Module):
    """Takes a list of pictures as its one argument, as detectors do."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, pictures: list[Tensor]) -> list[Tensor]:
        return [self.conv(picture[None]).mean((2, 3)) for picture in pictures]


def test_a_list_that_is_one_argument() -> None:
    model, batch = OfSeveral().eval(), [torch.randn(3, 8, 9), torch.randn(3, 9, 8)]
    with pytest.raises(CalibrationError, match=r"a list of 2, as one value.*\[\(batch,\), \.\.\.\]"):
        fq.quantize(model, iter([batch]))
    prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping(), (batch,))
    with pytest.raises(CalibrationError, match=r"as one argument, give \(batch,\)"):
        fq.calibrate(prepared, [batch])
    assert len(fq.quantize(model, [(batch,)])(batch)) == 2
