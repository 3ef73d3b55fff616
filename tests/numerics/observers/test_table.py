"""None"""

import copy
import io
import math
import pickle

import pytest
import torch

from fxquant.config.spec import Spec
from fxquant.errors import CalibrationError, ConfigError, StageError
from fxquant.numerics.observers.table import make_observer

KINDS = ("minmax", "moving_average", "percentile", "histogram", "entropy")


EXACT = ("minmax", "percentile", "histogram", "entropy")


def spec_for(kind, **changes):
    changes = {"signed": False, "symmetric": False, "observer": kind, **changes}
    return Spec(**changes, **({"range": (-1.0, 2.0)} if kind == "fixed" else {}))


def batches(count=6, size=(4, 8, 5, 5), seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, generator=generator) * 2.0 ** (i % 4) for i in range(count)]


def observed(spec, data, name="layer1.relu"):
    observer = make_observer(spec, name)
    for x in data:
        observer.update(x)
    return observer


def same_state(a, b):
    return all(torch.equal(x, y) for x, y in zip(a.buffers(), b.buffers(), strict=True))


@pytest.mark.parametrize("kind", EXACT)
@pytest.mark.parametrize("size", [(4, 8, 5, 5), (8, 16, 40, 40)], ids=["all", "sampled"])
def test_merging_has_the_bits_of_seeing_everything(kind, size):
    data = batches(size=size)
    whole = observed(spec_for(kind), data)
    left, right = observed(spec_for(kind), data[:2]), observed(spec_for(kind), data[2:])
    left.merge(right)
    assert same_state(left, whole)
    assert left.range() == whole.range()
    empty = make_observer(spec_for(kind), "a")
    empty.merge(whole)
    assert same_state(empty, whole)
    whole.merge(make_observer(spec_for(kind), "a"))
    assert same_state(empty, whole)


@pytest.mark.parametrize("kind", EXACT)
def test_the_order_of_batches_does_not_matter(kind):
    data = batches()
    assert same_state(observed(spec_for(kind), data), observed(spec_for(kind), data[::-1]))


def test_merging_needs_the_same_spec():
    with pytest.raises(ConfigError, match=r"'a'.*'b'"):
        make_observer(spec_for("minmax"), "a").merge(make_observer(spec_for("minmax", bits=4), "b"))


@pytest.mark.parametrize("kind", KINDS)
def test_nan_names_the_tensor_and_the_way_out(kind):
    observer = observed(spec_for(kind), batches(2))
    with pytest.raises(CalibrationError, match=r"'layer1\.relu' holds NaN in calibration batch 3.*drop the batch"):
        observer.update(torch.tensor([1.0, math.nan, math.inf]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("granularity", ["per_tensor", "per_channel"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_mask_values_are_left_out(kind, granularity, dtype):
    spec = spec_for(kind, granularity=granularity)
    x = torch.linspace(-1, 1, 64).reshape(4, 16).to(dtype)
    plain = observed(spec, [x])
    assert not plain.saw_sentinel
    masked = torch.cat((x, torch.full((4, 3), torch.finfo(dtype).min, dtype=dtype)), dim=1)
    masked[0, 16], masked[1, 17] = -math.inf, math.inf
    observer = observed(spec, [masked])
    assert observer.saw_sentinel
    for got, wanted in zip(observer.range(), plain.range(), strict=True):
        assert torch.equal(got.clamp(-1, 1), got)
        if granularity == "per_tensor":
            assert torch.equal(got, wanted)
        else:  # mask values count as 0, which every range includes
            assert (got - wanted).mul(wanted).eq(0).logical_or(got.eq(0)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_tensor_of_mask_values_only_was_not_seen(kind):
    observer = observed(spec_for(kind), [torch.full((3,), -math.inf)])
    assert observer.saw_sentinel
    assert not observer.seen
    with pytest.raises(StageError, match=r"'layer1\.relu' saw no data \(only mask values"):
        observer.range()


@pytest.mark.parametrize("kind", KINDS)
def test_integers_booleans_empty_and_meta_tensors_are_ignored(kind):
    ignored = [torch.arange(9), torch.tensor([True]), torch.zeros(0, 4), torch.ones(3, device="meta")]
    observer = observed(spec_for(kind), ignored)
    assert not observer.seen
    with pytest.raises(CalibrationError, match=r"in the layout torch\.sparse_coo.*to_dense"):
        observer.update(torch.eye(4).to_sparse())
    assert observer.low.device.type == "cpu"
    with pytest.raises(StageError, match=r"'layer1\.relu' saw no data"):
        observer.range()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("x", "low", "high"),
    [
        pytest.param(torch.zeros(10), 0.0, 0.0, id="zeros"),
        pytest.param(torch.full((10,), 3.0), 0.0, 3.0, id="constant"),
        pytest.param(torch.full((10,), -3.0), -3.0, 0.0, id="negative-constant"),
        pytest.param(torch.tensor(0.7), 0.0, 0.7, id="scalar"),
        pytest.param(torch.tensor([1e-30, -1e-30]), -1e-30, 1e-30, id="tiny"),
        pytest.param(torch.tensor([1e30, -1e30]), -1e30, 1e30, id="huge"),
    ],
)
def test_degenerate_data(kind, x, low, high):
    got_low, got_high = observed(spec_for(kind), [x] * 3).range()
    assert got_low.clamp(max=0.0).item() == pytest.approx(low, rel=0.01)
    assert got_high.clamp(min=0.0).item() == pytest.approx(high, rel=0.01)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_other_dtypes_see_what_float32_sees(kind, dtype):
    data = [x.to(dtype) for x in batches()]
    other, plain = observed(spec_for(kind), data), observed(spec_for(kind), [x.float() for x in data])
    assert same_state(other, plain)
    assert all(v.dtype == torch.float32 for v in other.range())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("granularity", ["per_tensor", "per_channel"])
def test_memory_does_not_grow(kind, granularity):
    observer = make_observer(spec_for(kind, granularity=granularity, axis=1), "x")
    observer.update(torch.randn(2, 8))
    before = {name: (b.shape, b.dtype) for name, b in observer.named_buffers()}
    for i in range(60):
        observer.update(torch.randn(1 + i % 5, 8) * 1.7**i)
    assert {name: (b.shape, b.dtype) for name, b in observer.named_buffers()} == before


@pytest.mark.parametrize("kind", KINDS)
def test_data_are_neither_changed_nor_kept(kind):
    x = torch.randn(4, 8, 5, 5, requires_grad=True)
    before = x.detach().clone()
    observer = observed(spec_for(kind), [x, x * 2])
    assert torch.equal(x.detach(), before)
    assert not any(b.requires_grad for b in observer.buffers())
    assert not any(b.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() for b in observer.buffers())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", ["channels_last", "transposed", "sliced", "expanded"])
def test_memory_layout_does_not_change_the_range(kind, layout):
    x = torch.randn(2, 6, 10, 10)
    other = {
        "channels_last": x.contiguous(memory_format=torch.channels_last),
        "transposed": x.transpose(1, 3),
        "sliced": torch.cat((x, x), dim=3)[..., :10],
        "expanded": x[:, None].expand(2, 1, 6, 10, 10),
    }[layout]
    assert same_state(observed(spec_for(kind), [other]), observed(spec_for(kind), [x]))


@pytest.mark.parametrize("kind", KINDS)
def test_per_channel_gives_one_range_per_channel(kind):
    x = torch.randn(4, 3, 7) * torch.tensor([1.0, 10.0, 100.0])[:, None]
    low, high = observed(spec_for(kind, granularity="per_channel", axis=1), [x]).range()
    assert torch.equal(low, x.amin((0, 2)))
    assert torch.equal(high, x.amax((0, 2)))


def test_a_dynamic_spec_has_no_observer():
    with pytest.raises(ConfigError, match=r"'x'.*run time"):
        make_observer(Spec(dynamic=True), "x")


@pytest.mark.parametrize("kind", [*KINDS, "fixed"])
@pytest.mark.parametrize("granularity", ["per_tensor", "per_channel"])
def test_state_survives_copy_pickle_and_state_dict(kind, granularity):
    spec = spec_for(kind, granularity=granularity, axis=1)
    observer = observed(spec, batches())
    file = io.BytesIO()
    torch.save(observer.state_dict(), file)
    file.seek(0)
    loaded = make_observer(spec, "layer1.relu")
    loaded.load_state_dict(torch.load(file, weights_only=True))
    for twin in (copy.deepcopy(observer), pickle.loads(pickle.dumps(observer)), loaded):
        assert same_state(twin, observer)
        assert all(torch.equal(a, b) for a, b in zip(twin.range(), observer.range(), strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_casting_the_model_does_not_round_the_range(kind):
    observer = observed(spec_for(kind), [torch.tensor([-0.1, 0.333333])])
    cast = copy.deepcopy(observer).half()
    assert same_state(cast, observer)
    assert cast.low.dtype == torch.float32
