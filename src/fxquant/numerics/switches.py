"""The switches that fake-quantize modules have in torch.ao, for ours.

`model.apply(torch.ao.quantization.disable_observer)` looks for torch.ao's own classes, so ours are made known to it
(graph/torch_compat.py): its functions then call these methods, as those of fxquant.compat do.
"""

from __future__ import annotations

from torch import nn

from fxquant.graph.torch_compat import known_as_fake_quantize


@known_as_fake_quantize
class Switched(nn.Module):
    """`observing`: the range follows the data. `rounding`: x is rounded, where the state of the module says so."""

    def __init__(self) -> None:
        super().__init__()
        self.observing = True
        self.rounding = True

    def enable_observer(self, enabled: bool = True) -> None:
        self.observing = enabled

    def disable_observer(self) -> None:
        self.enable_observer(False)

    def enable_fake_quant(self, enabled: bool = True) -> None:
        self.rounding = enabled

    def disable_fake_quant(self) -> None:
        self.enable_fake_quant(False)
