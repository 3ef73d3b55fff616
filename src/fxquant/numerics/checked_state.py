"""Modules that look at a state_dict before they take from it: numbers of another grid would fit, and be wrong."""

from __future__ import annotations

import abc
from collections.abc import Iterator

from torch import nn


class CheckedState(nn.Module):
    """Loads its part of a state_dict if `misfits` finds nothing against it; else the load fails with what it found."""

    @abc.abstractmethod
    def misfits(self, state_dict: dict[str, object], prefix: str) -> Iterator[str]:
        """Say what in a state_dict cannot be this module's."""

    def fit(self, state_dict: dict[str, object], prefix: str) -> None:
        """Make the module and its part of a state_dict fit each other."""

    def _load_from_state_dict(
        self,
        state_dict: dict[str, object],
        prefix: str,
        local_metadata: dict[str, object],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        if errors := list(self.misfits(state_dict, prefix)):
            error_msgs.extend(errors)
            return
        self.fit(state_dict, prefix)
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
