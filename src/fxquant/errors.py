"""The errors fxquant raises. Each message says what is wrong, where, and what to do next."""

from __future__ import annotations

from dataclasses import dataclass


class FxQuantError(Exception):
    """Base class of everything fxquant raises on purpose."""


class ConfigError(FxQuantError, ValueError):
    """A spec, qconfig, mapping or rule that cannot be used."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why code is not part of a graph, and what the user can do about it."""

    text: str
    hint: str = "mark the function that it names with fxquant.wrap"


class CaptureError(FxQuantError):
    """A model that could not be turned into a graph.

    `why` has the reason and a hint, `reason` is its text; `where` names the user's file and line, `path` the module
    whose code it is (None if unknown). `data_dependent` is True where code decides by the values in a tensor, or by the
    mode, which no graph can hold.
    """

    def __init__(
        self,
        message: str,
        *,
        why: Reason | None = None,
        where: str = "",
        path: str | None = None,
        data_dependent: bool = False,
    ) -> None:
        super().__init__(message)
        self.data_dependent = data_dependent
        self.why = why or Reason(message)
        self.reason = self.why.text
        self.where = where
        self.path = path


class InputError(FxQuantError, ValueError):
    """A captured model was called with inputs that its graph does not cover."""


class UnlikeInputError(InputError, RuntimeError):
    """A kernel failed on inputs that are unlike the example's; a RuntimeError, as torch's own is."""


class StageError(FxQuantError, RuntimeError):
    """A call in the wrong order: converting before calibrating, calibrating in train mode, and so on."""


def on_meta(what: str) -> StageError:
    """Return the error of a converted model whose tensors are on the device meta."""
    return StageError(
        f"the model is on the device meta, where {what} and its other tensors hold no numbers. Load them: "
        "model.to_empty(device='cpu'), then model.load_state_dict(...). Or fxquant.load the model's file."
    )


class CalibrationError(FxQuantError, RuntimeError):
    """Calibration data that cannot be used (NaN, no batches, inputs that do not fit the model)."""


class ArchiveError(FxQuantError, ValueError):
    """A file that cannot be read as a saved model, or a model that cannot be saved as one."""


class FirstCallError(ArchiveError, InputError):
    """The first call of a model that was loaded failed: its file, or the inputs, are not what they should be."""


class VerifyError(FxQuantError, AssertionError):
    """A pass broke an invariant of its stage; names the pass, the region and the node."""
