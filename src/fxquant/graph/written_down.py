"""Models whose ops torch wrote down: as a trace, or as an exported program.

Both hold torch's ops alone. A runner that rounds otherwise runs those from then on, so that the program and the model
agree bit by bit, and says so in the metadata of a state_dict, so that what loads it computes the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fxquant.graph.lowering import Runner

_KEY = "written_down"


def notice_export(runner: Runner | None) -> None:
    """Tell a runner that torch.export writes down what its region does."""
    if runner is not None:
        runner.write_down()


def keep_written(runner: Runner | None, state_dict: object, path: str) -> None:
    """Note in the metadata of a state_dict whether the ops of the region at `path` were written down."""
    metadata = getattr(state_dict, "_metadata", None)
    if runner is not None and runner.written and metadata is not None:
        metadata[path][_KEY] = True


def read_written(runner: Runner | None, metadata: object) -> None:
    """Let a runner compute as the one did whose state is loaded."""
    if runner is not None and isinstance(metadata, dict) and metadata.get(_KEY):
        runner.written = True
