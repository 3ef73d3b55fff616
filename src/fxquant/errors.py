"""The errors fxquant raises. Each message says what is wrong, where, and what to do next."""

from __future__ import annotations


class FxQuantError(Exception):
    """Base class of everything fxquant raises on purpose."""


class ConfigError(FxQuantError, ValueError):
    """A spec, qconfig, mapping or rule that cannot be used."""


class CaptureError(FxQuantError):
    """A model that could not be turned into a graph; names the user's file and line where known."""


class StageError(FxQuantError, RuntimeError):
    """A call in the wrong order: converting before calibrating, calibrating in train mode, and so on."""


class CalibrationError(FxQuantError, RuntimeError):
    """Calibration data that cannot be used (NaN, no batches, inputs that do not fit the model)."""


class ArchiveError(FxQuantError, ValueError):
    """A file that cannot be read as a saved model, or a model that cannot be saved as one."""


class VerifyError(FxQuantError, AssertionError):
    """A pass broke an invariant of its stage; names the pass, the region and the node."""
