"""conf.yaml files, as Neural Compressor 1.x has them: `from fxquant.config_file import Quantization, common`."""

from __future__ import annotations

from fxquant.config_file import common
from fxquant.config_file.quantization import Quantization
from fxquant.config_file.quantized_model import QuantizedModel
from fxquant.config_file.read import read_conf
from fxquant.config_file.sections.conf import json_schema

__all__ = ["Quantization", "QuantizedModel", "common", "json_schema", "read_conf"]
