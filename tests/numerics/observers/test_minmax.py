"""Extremes, their moving averages, and ranges that are given."""

import pytest
import torch

from fxquant.config.spec import Spec
from fxquant.errors import ConfigError
from fxquant.numerics.observers.table import make_observer


def spec_for(kind, **changes):
    changes = {"signed": False, "symmetric": False, "observer": kind, **changes}
    return Spec(**changes, **({"range": (-1.0, 2.0)} if kind == "fixed" else {}))


def observed(spec, data, name="layer1.relu"):
    observer = make_observer(spec, name)
    for x in data:
        observer.update(x)
    return observer


def test_merging_moving_averages_weighs_by_batches():
    spec = spec_for("moving_average")
    one, three = observed(spec, [torch.tensor([0.0, 1.0])]), observed(spec, [torch.tensor([-4.0, 5.0])] * 3)
    one.merge(three)
    assert [v.item() for v in one.range()] == pytest.approx([-3.0, 4.0])


def test_moving_average_starts_at_the_first_batch():
    spec = spec_for("moving_average", momentum=0.25)
    observer = observed(spec, [torch.tensor([-1.0, 2.0]), torch.tensor([-2.0, 6.0])])
    assert [v.item() for v in observer.range()] == [-1.25, 3.0]


def test_per_channel_with_another_number_of_channels_is_an_error():
    observer = observed(spec_for("minmax", granularity="per_channel", axis=1), [torch.randn(2, 3)])
    with pytest.raises(ConfigError, match=r"'layer1\.relu'.*\(3,\) to \(4,\)"):
        observer.update(torch.randn(2, 4))


def test_fixed_needs_no_data():
    observer = make_observer(spec_for("fixed"), "softmax")
    observer.update(torch.randn(10) * 100)
    assert observer.seen
    assert [v.item() for v in observer.range()] == [-1.0, 2.0]
