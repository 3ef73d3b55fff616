"""Training with quantization in the loop, over the zoo, every scheme and every capture method."""

from __future__ import annotations

import copy
import functools
import io
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

import fxquant as fq
from fxquant import algorithms
from fxquant.errors import ConfigError, StageError
from fxquant.numerics.affine import sqnr_db
from fxquant.numerics.fake_quant import FakeQuant
from fxquant.numerics.weights.qat_block import QatBlock
from zoo import ZOO, images

pytestmark = pytest.mark.usefixtures("exported_once")
SCHEMES = {
    "ste": fq.get_default_qat_qconfig("x86"),
    "lsq": fq.QConfig(
        activation=fq.Spec(signed=False, symmetric=False, learn="lsq"),
        weight=fq.Spec(bits=4, granularity="per_channel", learn="lsq"),
    ),
    "lsq+": fq.QConfig(
        activation=fq.Spec(signed=False, symmetric=False, learn="lsq+"),
        weight=fq.Spec(bits=4, granularity="per_channel", learn="lsq"),
    ),
    "tqt": fq.QConfig(activation=fq.Spec(learn="tqt"), weight=fq.Spec(learn="tqt")),
    "pact": fq.QConfig(
        activation=fq.Spec(bits=4, signed=False, symmetric=False, learn="pact", observer="percentile", percentile=98),
        weight=fq.Spec(granularity="per_channel", observer="minmax", learn="ste"),
    ),
}
METHODS = ("symbolic", "export", "piecewise")
# no rounding error, no gradient: these tensors lie on a power-of-two grid already
ON_GRID = ("quantizers.mul", "quantizers.imul", "quantizers.embed_in")
LEARNED = ("scale", "log2_threshold")
# the methods take turns over the schemes, and all three meet every model and every scheme
PAIRS = itertools.product(enumerate(ZOO), enumerate(SCHEMES))
TURNS = [(name, scheme, METHODS[(i + j) % 3]) for (i, name), (j, scheme) in PAIRS]


def mapping(scheme: str) -> fq.QConfigMapping:
    return fq.QConfigMapping().set_global(SCHEMES[scheme])


def prepare(
    name: str, scheme: str = "ste", method: str = "symbolic"
) -> tuple[nn.Module, nn.Module, tuple[Any, ...], dict[str, Any]]:
    entry = ZOO[name]
    model, args, kwargs = entry.build().train(), entry.inputs(), entry.kwargs()
    prepared = fq.prepare_qat_fx(model, mapping(scheme), args, example_kwargs=kwargs, method=method)
    return model, prepared, args, kwargs


def tensors(outputs: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def loss_of(outputs: Any) -> Tensor:
    return sum((leaf.float() - 1).square().mean() for leaf in tensors(outputs))


def train(model: nn.Module, args: Any, kwargs: Any, steps: int, lr: float = 2e-3) -> list[float]:
    optimizer = torch.optim.Adam(model.parameters(), lr)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model(*args, **kwargs))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def evaluate(model: nn.Module, args: Any, kwargs: Any) -> list[Tensor]:
    with torch.no_grad():
        return tensors(model(*args, **kwargs))


@pytest.mark.broad
@pytest.mark.parametrize(("name", "scheme", "method"), TURNS)
def test_it_trains_and_converts_to_what_was_evaluated(name: str, scheme: str, method: str) -> None:
    model, prepared, args, kwargs = prepare(name, scheme, method)
    before = copy.deepcopy(model.state_dict())
    learned = [(n, p) for n, p in prepared.named_parameters() if n.endswith(LEARNED)]
    seen = {n: torch.zeros(()) for n, _ in learned}
    optimizer = torch.optim.Adam(prepared.parameters(), 4e-3)
    losses = []
    for _ in range(12):
        optimizer.zero_grad()
        loss = loss_of(prepared(*args, **kwargs))
        loss.backward()
        losses.append(loss.item())
        for n, parameter in learned:
            seen[n] += parameter.grad.abs().sum()
        optimizer.step()
    assert all(torch.isfinite(total) for total in seen.values())
    idle = [name for name, total in seen.items() if total == 0]
    if scheme != "pact":  # which learns from what it clips only
        assert [name for name in idle if scheme != "tqt" or not name.startswith(ON_GRID)] == []
    trained = evaluate(prepared.eval(), args, kwargs)
    assert sum(losses[-4:]) < sum(losses[:4])
    for other in (fq.freeze(prepared), fq.convert_fx(prepared, engine="reference")):
        for expected, actual in zip(trained, evaluate(other, args, kwargs), strict=True):
            # the arithmetic is the same but for the order of float sums, which can move a value by one step
            assert sqnr_db(expected, actual) > 30
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


@pytest.mark.broad
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_loss_falls_without_nan_over_200_steps(scheme: str, method: str) -> None:
    _, prepared, args, kwargs = prepare("linear_batch_norm", scheme, method)
    losses = train(prepared, args, kwargs, 200)
    assert all(loss == loss for loss in losses)
    assert sum(losses[-20:]) < 0.5 * sum(losses[:20])


@pytest.mark.broad
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ZOO)
def test_a_float_checkpoint_loads_by_its_own_names(name: str, method: str) -> None:
    model, prepared, args, kwargs = prepare(name, "lsq", method)
    changed = {key: value * 2 if value.is_floating_point() else value for key, value in model.state_dict().items()}
    result = prepared.load_state_dict(changed, strict=False)
    assert result.unexpected_keys == []
    assert all("quantizer" in key or "weight_fq" in key for key in result.missing_keys)
    model.load_state_dict(changed)
    # nothing is quantized before there is data, but for the weights
    for block in prepared.modules():
        if type(block) is QatBlock:
            block.weight_fq.forward = lambda weight: weight
    for expected, actual in zip(
        evaluate(model.eval(), args, kwargs), evaluate(prepared.eval(), args, kwargs), strict=True
    ):
        assert sqnr_db(expected, actual) > 35  # known ranges, such as a sigmoid's, are quantized from the start


def test_parameters_keep_their_names_and_learned_ones_have_theirs() -> None:
    model, prepared, _, _ = prepare("resnet", "lsq")
    names = {name for name, _ in prepared.named_parameters()}
    assert {name for name, _ in model.named_parameters()} <= names
    rest = names - {name for name, _ in model.named_parameters()}
    assert rest and all(name.endswith("scale") for name in rest)
    _, prepared, _, _ = prepare("resnet", "tqt")
    assert {n.rpartition(".")[2] for n, _ in prepared.named_parameters() if "quantizers" in n} == {"log2_threshold"}


@pytest.mark.broad
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_resumed_run_is_bit_equal(scheme: str) -> None:
    def run(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
        for step in steps:
            x = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(step))
            optimizer.zero_grad()
            loss_of(model(x)).backward()
            optimizer.step()

    _, model, _, _ = prepare("resnet", scheme)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    run(model, optimizer, range(4))
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    run(model, optimizer, range(4, 8))
    _, resumed, _, _ = prepare("resnet", scheme)
    again = torch.optim.AdamW(resumed.parameters(), 1e-3)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    resumed.load_state_dict(state["model"])
    again.load_state_dict(state["optimizer"])
    run(resumed, again, range(4, 8))
    for key, value in model.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[key]), key


@pytest.mark.broad
@pytest.mark.parametrize("name", ["resnet", "linear_batch_norm", "conv1d", "unet", "tied_lm", "vision_transformer"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_training_starts_from_a_calibrated_model(name: str, scheme: str) -> None:
    entry = ZOO[name]
    model, args, kwargs = entry.build(), entry.inputs(), entry.kwargs()
    qconfig = SCHEMES[scheme]
    activation, weight = (spec.with_(learn=None, observer="histogram") for spec in (qconfig.activation, qconfig.weight))
    ptq = fq.prepare_fx(model, fq.QConfigMapping().set_global(fq.QConfig(activation=activation, weight=weight)), args)
    fq.calibrate(ptq, [args])
    qat = fq.prepare_qat_fx(entry.build().train(), mapping(scheme), args)
    with torch.no_grad():
        for parameter in qat.parameters():
            parameter.mul_(3.0)
    for key, value in entry.build().state_dict().items():  # statistics and gamma are taken from the float model
        if key in dict(qat.named_buffers()) or key in dict(qat.named_parameters()):
            qat.state_dict()[key].copy_(value)
    qat.load_state_dict(ptq.state_dict())
    assert all(q.has_range for q in qat.modules() if isinstance(q, FakeQuant))
    expected = evaluate(fq.convert_fx(ptq, engine="reference"), args, kwargs)
    for ours, theirs in zip(evaluate(qat.eval(), args, kwargs), expected, strict=True):
        assert sqnr_db(theirs, ours) > (20 if scheme == "ste" else 5)


@pytest.mark.parametrize("scheme", ["lsq", "lsq+", "tqt"])
def test_training_starts_where_algorithms_put_a_frozen_model(scheme: str) -> None:
    entry = ZOO["resnet"]
    args = entry.inputs()
    qconfig = SCHEMES[scheme]
    post = fq.QConfig(activation=qconfig.activation.with_(learn=None), weight=qconfig.weight.with_(learn=None))
    ptq = fq.prepare_fx(entry.build(), {"": post}, args, target="x86-vnni", algorithms=algorithms.BALANCED)
    frozen = fq.freeze(fq.calibrate(ptq, [args]))
    with torch.no_grad():
        for quantizer in frozen.modules():
            if isinstance(quantizer, FakeQuant):
                quantizer.scale.mul_(2)  # what no observer would choose
    wanted = evaluate(frozen, args, {})[0]
    qat = fq.prepare_qat_fx(entry.build().train(), mapping(scheme), args, target="x86-vnni")
    qat.load_state_dict(frozen.state_dict())
    assert sqnr_db(wanted, evaluate(qat.eval(), args, {})[0]) > 40
    train(qat.train(), args, {}, 1)


def test_the_grids_of_a_frozen_model_of_other_bits_are_no_start() -> None:
    entry = ZOO["resnet"]
    args = entry.inputs()
    frozen = fq.freeze(fq.calibrate(fq.prepare_fx(entry.build(), fq.get_default_qconfig_mapping(), args), [args]))
    wide = {m.name: m.scale for m in frozen.modules() if isinstance(m, FakeQuant)}
    few = SCHEMES["lsq"].activation.with_(bits=4)
    qat = fq.prepare_qat_fx(entry.build().train(), {"": fq.QConfig(activation=few, weight=SCHEMES["lsq"].weight)}, args)
    qat.load_state_dict(frozen.state_dict())
    wanted = evaluate(entry.build(), args, {})[0]
    assert sqnr_db(wanted, evaluate(qat.eval(), args, {})[0]) > 5
    narrow = {m.name: m.compute_qparams()[0] for m in qat.modules() if isinstance(m, FakeQuant)}
    assert narrow.keys() == wide.keys() and all(narrow[name] > 4 * wide[name] for name in narrow)


@pytest.mark.broad
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_model_for_training_can_be_calibrated_itself(scheme: str) -> None:
    model, prepared, args, kwargs = prepare("resnet", scheme)
    data = [images(4) for _ in range(3)]
    fq.calibrate(prepared.eval(), data)
    assert all(q.has_range and q.state == "train" for q in prepared.modules() if isinstance(q, FakeQuant))
    converted = fq.convert_fx(prepared)
    assert sqnr_db(evaluate(model.eval(), args, {})[0], evaluate(converted, args, {})[0]) > 5
    prepared.train()
    loss_of(prepared(*args, **kwargs)).backward()


@pytest.mark.broad
@pytest.mark.parametrize("scheme", SCHEMES)
def test_autocast_checkpointing_and_averaged_copies(scheme: str) -> None:
    _, prepared, args, _ = prepare("resnet", scheme)
    average = AveragedModel(prepared, multi_avg_fn=get_ema_multi_avg_fn(0.5), use_buffers=True)
    optimizer = torch.optim.SGD(prepared.parameters(), 1e-2)
    for _ in range(4):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(checkpoint(prepared, *args, use_reentrant=False))
        loss.backward()
        optimizer.step()
        average.update_parameters(prepared)
    assert all(torch.isfinite(p.grad).all() for p in prepared.parameters() if p.grad is not None)
    ours, theirs = evaluate(average.eval(), args, {}), evaluate(prepared.eval(), args, {})
    assert sqnr_db(theirs[0], ours[0]) > 5
    converted = fq.convert_fx(average.module)
    assert sqnr_db(ours[0], evaluate(converted, args, {})[0]) > 30


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpointed_step_is_the_plain_one(reentrant: bool) -> None:
    _, plain, (x,), _ = prepare("resnet", "lsq")
    train(plain, (x,), {}, 1)
    again = copy.deepcopy(plain)
    for model in (plain, again):
        model.zero_grad()
    loss_of(plain(x)).backward()
    loss_of(checkpoint(again, x.requires_grad_(), use_reentrant=reentrant)).backward()
    for ours, theirs in zip(again.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)
    state = plain.state_dict()
    assert all(torch.equal(value, state[key]) for key, value in again.state_dict().items())


def test_wrong_order_is_said() -> None:
    entry = ZOO["plain"]
    with pytest.raises(StageError, match=r"call model\.train\(\) first"):
        fq.prepare_qat_fx(entry.build(), mapping("ste"), entry.inputs())
    prepared = fq.prepare_qat_fx(entry.build().train(), mapping("ste"), entry.inputs())
    with pytest.raises(StageError, match=r"not trained: none of its \d+ quantizers saw data"):
        fq.freeze(prepared)
    with pytest.raises(StageError, match="converted without calibration, and waits for"):
        fq.convert_fx(prepared)(*entry.inputs())
    with pytest.raises(StageError, match="already prepared"):
        fq.prepare_qat_fx(prepared, mapping("ste"), entry.inputs())
    with pytest.raises(ConfigError, match="for training"):
        fq.prepare_fx(entry.build(), mapping("ste"), entry.inputs())
    with pytest.raises(ConfigError, match="no spec for training"):
        fq.prepare_qat_fx(entry.build().train(), fq.get_default_qconfig_mapping(), entry.inputs())


def test_shared_norms_are_left_alone_with_a_reason() -> None:
    _, prepared, _, _ = prepare("shared_batch_norm")
    reasons = [row.reason for row in fq.explain(prepared) if row.kind == "batch_norm"]
    assert len(reasons) == 1 and "not merged into conv: its output has another user" in reasons[0]
    _, prepared, _, _ = prepare("densenet")
    norms = [module for module in prepared.modules() if isinstance(module, nn.BatchNorm2d)]
    assert len(norms) == 3 and all(row.status == "int8" for row in fq.explain(prepared) if row.kind == "conv2d")


class TwiceNormed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.norm = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.two(self.norm(self.one(x))))


def test_a_norm_at_two_call_sites_is_refused_with_a_reason() -> None:
    prepared = fq.prepare_qat_fx(TwiceNormed().train(), mapping("ste"), (images(),))
    reasons = [row.reason for row in fq.explain(prepared) if row.kind == "batch_norm"]
    assert len(reasons) == 2 and all("norm is called 2 times" in reason for reason in reasons)
    train(prepared, (images(),), {}, 3)


def test_dropout_drops_in_training_and_is_gone_afterwards() -> None:
    _, prepared, args, _ = prepare("functional_dropout")
    assert not torch.equal(prepared(*args), prepared(*args))
    prepared.eval()
    assert torch.equal(prepared(*args), prepared(*args))
    frozen = fq.freeze(prepared)
    called = [frozen.get_submodule(str(node.target)) for node in frozen.graph.nodes if node.op == "call_module"]
    assert not any(isinstance(module, nn.Dropout) for module in called)


def test_settings_by_callable_and_modes_without_activations() -> None:
    entry = ZOO["encoder_block"]
    weight = fq.Spec(bits=4, granularity="per_channel", learn="lsq")
    dynamic = fq.Spec(signed=False, symmetric=False, dynamic=True, observer="minmax")
    for qconfig in (fq.QConfig(weight=weight), fq.QConfig(activation=dynamic, weight=weight)):
        prepared = fq.prepare_qat_fx(entry.build().train(), lambda name, kind, op, q=qconfig: q, entry.inputs())
        train(prepared, entry.inputs(), {}, 5)
        converted = fq.convert_fx(prepared.eval(), engine="reference")
        assert sqnr_db(evaluate(prepared, entry.inputs(), {})[0], evaluate(converted, entry.inputs(), {})[0]) > 25


@functools.cache
def torch_ao_mapping() -> Any:
    from torch.ao.quantization import get_default_qat_qconfig_mapping

    return get_default_qat_qconfig_mapping("x86")


@pytest.mark.filterwarnings("ignore")
def test_a_mapping_of_torch_ao_is_read() -> None:
    entry = ZOO["plain"]
    prepared = fq.prepare_qat_fx(entry.build().train(), torch_ao_mapping(), entry.inputs())
    assert train(prepared, entry.inputs(), {}, 20)[-1] < train(prepared, entry.inputs(), {}, 1)[0] * 2
    assert fq.convert_fx(prepared)(*entry.inputs()).shape == (2, 10)
