"""Quark's flow: quantize, train, freeze, export."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import fx, nn

from fxquant.capture.canonical.as_plain import as_plain
from fxquant.compat.quark.config import QConfig
from fxquant.errors import ConfigError
from fxquant.export.encodings import export_json
from fxquant.export.onnx.export import export_onnx as _export_onnx
from fxquant.flows.calibrate import as_example, calibrate, peek
from fxquant.graph.own import copy_model
from fxquant.graph.region import regions, stage_of
from fxquant.graph.region_parts import Stage
from fxquant.quantize_fx import convert_fx, freeze, prepare_qat_fx


class ModelQuantizer:
    """Quark's flow: `quantize_model`, then training as usual if wanted, then `freeze`."""

    def __init__(self, config: QConfig) -> None:
        if not isinstance(config, QConfig):
            raise ConfigError(f"ModelQuantizer takes a Config, not a {type(config).__name__}: {config!r:.80}.")
        self.config = config

    def quantize_model(self, model: nn.Module, dataloader: Iterable[object] | None = None) -> nn.Module:
        """Return a model that simulates the quantized one, and trains. Without data its ranges come from training.

        `model` is a module, or what `torch.export` made of one (`.module()`). It is not changed.
        """
        model = as_plain(model, "quantize_model", training=False)
        trained = copy_model(model).train()
        rule, target = self.config.rule(training=True), self.config.target()
        if dataloader is None or (isinstance(dataloader, Sequence) and not dataloader):
            return prepare_qat_fx(trained, rule, _exported_with(model), target=target)
        batch, dataloader = peek(dataloader)
        args, kwargs = as_example(batch, model)
        rows = _rows_as_exported(model)
        args, kwargs = tuple(map(rows, args)), {name: rows(value) for name, value in (kwargs or {}).items()}
        prepared = prepare_qat_fx(trained, rule, args, example_kwargs=kwargs or None, target=target)
        return calibrate(prepared.eval(), dataloader)

    def freeze(self, model: nn.Module) -> nn.Module:
        """Return the model as it will run on the device.

        Its batch norms are folded, its scales fixed, its shifts inside their limits.
        """
        return freeze(model)


def _exported_with(model: nn.Module) -> tuple[torch.Tensor, ...] | None:
    """Inputs of the sizes that a program was exported with; None for other modules, and where sizes are open."""
    shown = _shown(model)
    tensors = [val for val in shown if isinstance(val, torch.Tensor)]
    if not shown or len(tensors) != len(shown):
        return None
    if not all(isinstance(size, int) for val in tensors for size in val.shape):
        return None
    return tuple(torch.zeros(tuple(val.shape), dtype=val.dtype) for val in tensors)


def _shown(model: nn.Module) -> list[object]:
    """Return what an export saw of the inputs of a program."""
    nodes = model.graph.nodes if isinstance(model, fx.GraphModule) else ()
    return [node.meta.get("val") for node in nodes if node.op == "placeholder"]


def _rows_as_exported(model: nn.Module) -> Callable[[object], object]:
    """Return what takes as many rows of a batch as the program was exported with: its own module takes no others."""
    rows = [val.shape[0] for val in _shown(model) if isinstance(val, torch.Tensor) and val.dim()]
    fixed = {size for size in rows if isinstance(size, int)}  # one that was exported as open has no hash
    if len(fixed) != 1:
        return lambda arg: arg
    most = fixed.pop()
    return lambda arg: arg[:most] if isinstance(arg, torch.Tensor) and arg.dim() else arg


@dataclass(frozen=True)
class JsonExporterConfig:
    """That a JSON file with the scales of all tensors is written beside the model."""


@dataclass(frozen=True)
class OnnxExporterConfig:
    """Settings of the ONNX file."""


@dataclass(frozen=True)
class ExporterConfig:
    """What is exported."""

    json_export_config: JsonExporterConfig | None = None
    onnx_export_config: OnnxExporterConfig = OnnxExporterConfig()


class ModelExporter:
    """Writes files into a directory: `quark_model.onnx`, and `quark_model.json` if the config asks for it."""

    def __init__(self, config: ExporterConfig | None = None, export_dir: str | Path = ".") -> None:
        self.config = config or ExporterConfig()
        self.export_dir = Path(export_dir)

    def export_onnx_model(self, model: nn.Module, input_args: torch.Tensor | tuple[object, ...]) -> Path:
        """Write a frozen, trained or converted model as ONNX."""
        path = export_onnx(model, input_args, self.export_dir)
        if self.config.json_export_config is not None:
            export_json(_converted(model), path.with_suffix(".json"))
        return path


def export_onnx(model: nn.Module, input_args: torch.Tensor | tuple[object, ...], output_dir: str | Path = ".") -> Path:
    """Write a frozen, trained or converted model as `quark_model.onnx` into a directory."""
    path = Path(output_dir) / "quark_model.onnx"
    path.parent.mkdir(parents=True, exist_ok=True)
    args = input_args if isinstance(input_args, tuple) else (input_args,)
    _export_onnx(_converted(model), path, args)
    return path


def _converted(model: nn.Module) -> nn.Module:
    converted = all(stage_of(region) is Stage.CONVERTED for _, region in regions(model))
    return model if converted else convert_fx(model, engine="reference")
