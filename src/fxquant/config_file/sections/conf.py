"""A whole conf.yaml."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from fxquant.config_file.sections.evaluation import Evaluation
from fxquant.config_file.sections.quantization import Quantization
from fxquant.config_file.sections.section import Section, Several
from fxquant.config_file.sections.tuning import Tuning

Framework = Literal[
    "pytorch", "pytorch_fx", "pytorch_ipex", "tensorflow", "tensorflow_itex", "mxnet", "onnxrt_qlinearops",
    "onnxrt_integerops", "onnxrt_qoperator", "onnxrt_qdq", "NA",
]  # fmt: skip


class Model(Section):
    name: str = "model"
    framework: Framework = "pytorch_fx"
    inputs: Several[str] = Field(default_factory=list)
    outputs: Several[str] = Field(default_factory=list)


class Conf(Section):
    """Every key that a file may have. What belongs to other tools than quantization is taken as it is."""

    model: Model
    version: float | str = 1.0
    device: Literal["cpu", "gpu"] = "cpu"
    quantization: Quantization = Field(default_factory=Quantization)
    evaluation: Evaluation = Field(default_factory=Evaluation)
    tuning: Tuning = Field(default_factory=Tuning)
    graph_optimization: Any = None
    mixed_precision: Any = None
    model_conversion: Any = None
    pruning: Any = None
    distillation: Any = None
    auto_distillation: Any = None
    nas: Any = None
    train: Any = None

    @field_validator("version")
    @classmethod
    def _version(cls, value: float | str) -> float | str:
        if not str(value).startswith(("1", "2")):
            raise ValueError(f"version is {value!r}; files of version 1 (and 2) can be read")
        return value


def json_schema() -> dict[str, object]:
    """Return the schema; give it to an editor, or put `# yaml-language-server: $schema=...` on top of a file."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Conf.model_json_schema()}
