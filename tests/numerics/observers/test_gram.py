"""Moments of few rows: what is chance in their covariances goes, what is not stays."""

from __future__ import annotations

import torch

from fxquant.numerics.observers.gram import Gram, Patches, shrink


def covariance(x: torch.Tensor) -> torch.Tensor:
    x = x.double() - x.double().mean(0)
    return (x.t() @ x / len(x)).unsqueeze(0)


def test_chance_goes() -> None:
    """Of numbers that have nothing to do with each other, nearly all, however many rows there are."""
    for rows in (4, 64, 1024):
        found = covariance(torch.randn(rows, 32))
        shrunk = shrink(found.clone(), rows)
        assert torch.equal(shrunk.diagonal(dim1=1, dim2=2), found.diagonal(dim1=1, dim2=2))
        beside = ~torch.eye(32, dtype=torch.bool).unsqueeze(0)
        assert shrunk[beside].norm() < 0.2 * found[beside].norm()


def test_what_is_no_chance_stays() -> None:
    mixed = torch.randn(512, 8) @ torch.randn(8, 32)
    found = covariance(mixed)
    torch.testing.assert_close(shrink(found.clone(), 512), found, rtol=0.05, atol=0.0)


def test_one_row_and_rows_that_are_all_alike() -> None:
    gram = Gram(Patches(channels=4, outputs=4))
    gram(torch.ones(1, 4))
    moments = gram.moments()
    assert moments is not None
    torch.testing.assert_close(moments[0], torch.ones(1, 4, 4, dtype=torch.float64))


def test_large_matrices_are_whole() -> None:
    """Of which calibration keeps blocks on and above the diagonal alone."""
    gram, x = Gram(Patches(channels=600, outputs=4096)), torch.randn(40, 600)
    for part in x.split(20):
        gram(part)
    moments = gram.moments()
    assert moments is not None
    mean = x.double().mean(0)
    wanted = shrink(covariance(x), 40) + mean.outer(mean)
    torch.testing.assert_close(moments[0], wanted, rtol=1e-4, atol=1e-5)
