"""QuantStub, DeQuantStub and QuantWrapper, for models written for eager mode. They do nothing: graphs need no marks."""

from __future__ import annotations

from torch import Tensor, nn


class QuantStub(nn.Module):
    """Gives back what it gets."""

    def __init__(self, qconfig: object = None) -> None:
        super().__init__()
        if qconfig is not None:
            self.qconfig = qconfig

    def forward(self, x: Tensor) -> Tensor:
        return x


class DeQuantStub(QuantStub):
    """Gives back what it gets."""


class QuantWrapper(nn.Module):
    """A module between both stubs."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        qconfig = getattr(module, "qconfig", None)
        self.quant, self.dequant, self.module = QuantStub(qconfig), DeQuantStub(qconfig), module
        self.train(module.training)

    def forward(self, x: Tensor) -> Tensor:
        x = self.module(self.quant(x))
        return self.dequant(x)  # type: ignore[no-any-return]
