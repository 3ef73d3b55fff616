"""The names that files of Neural Compressor 1.x are used with: `common.Model`, `common.DataLoader`, `common.Metric`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.utils.data import DataLoader

from fxquant.config.forms import closest
from fxquant.errors import ConfigError

_OPTIONS = (
    *("prepare_custom_config_dict", "prepare_custom_config", "convert_custom_config_dict", "convert_custom_config"),
    *("example_inputs", "example_kwargs", "concrete_args", "target", "method", "sizes"),
)


class Model:
    """A model with what is to be known about it: `common.Model(m, prepare_custom_config_dict={...})`.

    Options are those of `fxquant.prepare_fx`, and `convert_custom_config(_dict)`.
    """

    def __init__(self, model: nn.Module, **options: object) -> None:
        if not isinstance(model, nn.Module):
            raise ConfigError(f"common.Model got a {type(model).__name__}. Give an nn.Module.")
        for name in options:
            if name not in _OPTIONS:
                raise ConfigError(f"common.Model has no option {name!r}.{closest(name, _OPTIONS)}")
        self.model = model
        self.options = options


@dataclass(frozen=True)
class Metric:
    """A metric of the user's own: a class with `update(preds, labels)`, `reset()` and `result()`, or an instance."""

    metric_cls: Any
    name: str = "user_metric"
    settings: dict[str, Any] = field(default_factory=dict)

    def __init__(self, metric_cls: object, name: str = "user_metric", **settings: object) -> None:
        for attribute, value in (("metric_cls", metric_cls), ("name", name), ("settings", settings)):
            object.__setattr__(self, attribute, value)

    def make(self) -> object:
        made = self.metric_cls(**self.settings) if isinstance(self.metric_cls, type) else self.metric_cls
        for method in ("update", "reset", "result"):
            if not callable(getattr(made, method, None)):
                raise ConfigError(f"the metric {self.name!r} has no method {method}(). It needs update, reset, result.")
        return made


@dataclass(frozen=True)
class Postprocess:
    """A function of (outputs, labels) that a metric sees the result of."""

    postprocess_cls: Callable[..., Any]
    name: str = "user_postprocess"


__all__ = ["DataLoader", "Metric", "Model", "Postprocess"]
