"""What `fit` gives: a converted model with a report, which goes into a directory or a file."""

from __future__ import annotations

import json
import os
from pathlib import Path

from torch import nn

from fxquant.api import MODEL_FILE, save
from fxquant.errors import ConfigError
from fxquant.files import Json, replacing


class QuantizedModel(nn.Module):
    """What `fit` gives: the converted `model`, which a call runs, and a `report` of plain values."""

    def __init__(self, model: nn.Module, report: Json) -> None:
        super().__init__()
        self.model = model
        self.report = report

    def forward(self, *args: object, **kwargs: object) -> object:
        return self.model(*args, **kwargs)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the model into a directory, with its report, or into a file whose name ends in .fq."""
        target = Path(path)
        if target.suffix == ".fq":
            return save(self.model, target)
        try:
            target.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot make the directory {str(path)!r}: {error.strerror}.") from error
        with replacing(target / "report.json", ConfigError) as part:
            part.write_text(json.dumps(self.report, indent=1) + "\n")
        save(self.model, target / MODEL_FILE)
        return target
