"""Hold batch norm statistics or observed ranges still during training, for a while or by a schedule.

The functions take a model, or serve as `model.apply(freeze_observers)`. `model.train()` does not undo them.
"""

from __future__ import annotations

from torch import nn

from fxquant.errors import ConfigError
from fxquant.graph.check_model import refuse_other
from fxquant.numerics.fake_quant import FakeQuant
from fxquant.numerics.weights.fold_norm import FROZEN, BatchNorm


def freeze_bn_stats(model: nn.Module) -> None:
    """Let every batch norm use its running statistics, also in train mode, and no longer update them.

    Example:
        >>> prepared = fq.prepare_qat_fx(model.train(), fq.get_default_qat_qconfig_mapping(), (loader[0],))
        >>> fq.freeze_bn_stats(prepared)  # after the first epochs
    """
    refuse_other(model, "freeze_bn_stats")
    for norm in model.modules():
        if isinstance(norm, BatchNorm) and FROZEN not in norm.__dict__:
            norm.__dict__[FROZEN] = norm.register_forward_pre_hook(_use_running).id


def unfreeze_bn_stats(model: nn.Module) -> None:
    """Undo `freeze_bn_stats`.

    Example:
        >>> prepared = fq.prepare_qat_fx(model.train(), fq.get_default_qat_qconfig_mapping(), (loader[0],))
        >>> fq.freeze_bn_stats(prepared)
        >>> fq.unfreeze_bn_stats(prepared)
    """
    refuse_other(model, "unfreeze_bn_stats")
    for norm in model.modules():
        if isinstance(norm, BatchNorm) and FROZEN in norm.__dict__:
            norm._forward_pre_hooks.pop(norm.__dict__.pop(FROZEN), None)


def _use_running(norm: nn.Module, args: object) -> None:
    norm.training = False


def freeze_observers(model: nn.Module) -> None:
    """Keep observed ranges as they are. Learned ones go on learning; weights keep the range that they have.

    Example:
        >>> prepared = fq.prepare_qat_fx(model.train(), fq.get_default_qat_qconfig_mapping(), (loader[0],))
        >>> fq.freeze_observers(prepared)  # ranges stay as they are from here
    """
    refuse_other(model, "freeze_observers")
    _observe(model, False)


def unfreeze_observers(model: nn.Module) -> None:
    """Let observed ranges follow the data again.

    Example:
        >>> prepared = fq.prepare_qat_fx(model.train(), fq.get_default_qat_qconfig_mapping(), (loader[0],))
        >>> fq.freeze_observers(prepared)
        >>> fq.unfreeze_observers(prepared)
    """
    refuse_other(model, "unfreeze_observers")
    _observe(model, True)


def _observe(model: nn.Module, observing: bool) -> None:
    for quantizer in model.modules():
        if isinstance(quantizer, FakeQuant):
            quantizer.observing = observing


class FreezeSchedule:
    """Freezes observers and batch norm statistics at given steps: call `step()` after each optimizer step.

    None leaves them alone. `state_dict` holds the step; loading it brings the model to the state that belongs to it.

    Example:
        >>> prepared = fq.prepare_qat_fx(model.train(), fq.get_default_qat_qconfig_mapping(), (loader[0],))
        >>> schedule = fq.FreezeSchedule(prepared, observers=1000, bn_stats=2000)
        >>> schedule.step()
    """

    def __init__(self, model: nn.Module, *, observers: int | None = None, bn_stats: int | None = None) -> None:
        for name, at in (("observers", observers), ("bn_stats", bn_stats)):
            if at is not None and at < 0:
                raise ConfigError(f"FreezeSchedule({name}={at}): expected a step from 0 on, or None.")
        self.model = model
        self.observers = observers
        self.bn_stats = bn_stats
        self.count = 0
        self._act()

    def step(self) -> None:
        """One more step is done."""
        self.count += 1
        self._act()

    def _act(self) -> None:
        if self.observers is not None:
            (freeze_observers if self.count >= self.observers else unfreeze_observers)(self.model)
        if self.bn_stats is not None:
            (freeze_bn_stats if self.count >= self.bn_stats else unfreeze_bn_stats)(self.model)

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count = state["count"]
        self._act()
