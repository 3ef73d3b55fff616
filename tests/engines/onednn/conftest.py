"""Here, models without an engine's name run on oneDNN, whatever is the default."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fxquant.engines import table


@pytest.fixture(autouse=True, scope="module")
def _on_onednn() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table, "default_engine", lambda: table.as_engine("onednn"))
        yield
