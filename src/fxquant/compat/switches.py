"""What is applied to prepared models: `model.apply(disable_observer)`, and the state of observers."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from fxquant.errors import ConfigError
from fxquant.flows import freezing
from fxquant.numerics.fake_quant import FakeQuant
from fxquant.numerics.observers.watcher import Watcher
from fxquant.numerics.switches import Switched


def enable_observer(mod: nn.Module) -> None:
    """Let the range of a quantizer follow the data."""
    if isinstance(mod, Switched):
        mod.enable_observer()


def disable_observer(mod: nn.Module) -> None:
    """Keep the range of a quantizer as it is."""
    if isinstance(mod, Switched):
        mod.disable_observer()


def enable_fake_quant(mod: nn.Module) -> None:
    """Let a quantizer of a training or frozen model round. One of a post-training model only observes."""
    if isinstance(mod, Switched):
        mod.enable_fake_quant()


def disable_fake_quant(mod: nn.Module) -> None:
    """Let a quantizer give back what it gets."""
    if isinstance(mod, Switched):
        mod.disable_fake_quant()


def freeze_bn_stats(mod: nn.Module) -> None:
    """Let batch norms use their running statistics, and no longer update them: that of torch.ao.nn.intrinsic.qat."""
    freezing.freeze_bn_stats(mod)


def update_bn_stats(mod: nn.Module) -> None:
    """Undo `freeze_bn_stats`."""
    freezing.unfreeze_bn_stats(mod)


def get_observer_state_dict(mod: nn.Module) -> dict[str, object]:
    """Return what calibration found.

    That is the part of the state_dict that belongs to quantizers, and to what algorithms watched.
    """
    found = [path for path, module in mod.named_modules() if isinstance(module, (FakeQuant, Watcher))]
    prefixes = tuple(f"{path}." if path else "" for path in found)
    return {key: value for key, value in mod.state_dict().items() if prefixes and key.startswith(prefixes)}


def load_observer_state_dict(mod: nn.Module, obs_dict: Mapping[str, object]) -> None:
    """Load what `get_observer_state_dict` gave, into a model that was prepared in the same way."""
    own = get_observer_state_dict(mod)
    missing, unexpected = sorted(own.keys() - obs_dict.keys()), sorted(obs_dict.keys() - own.keys())
    if missing or unexpected:
        raise ConfigError(
            f"load_observer_state_dict: {len(missing)} keys are missing ({', '.join(missing[:3])}), {len(unexpected)} "
            f"are not known ({', '.join(unexpected[:3])}). Prepare the model as the saved one was."
        )
    mod.load_state_dict(dict(obs_dict), strict=False)
