"""A package that is imported while torch's functions are replaced keeps the real ones."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch

from fxquant.capture.symbolic.late_import import importing_without


def test_a_package_sees_what_was_there_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("keeps", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("import torch\nkept = torch.finfo\n")
    monkeypatch.syspath_prepend(tmp_path)
    real, finders = torch.finfo, list(sys.meta_path)
    with importing_without(lambda: mock.patch.object(torch, "finfo", None), "keeps"):
        keeps, other = importlib.import_module("keeps"), importlib.import_module("other")
        assert torch.finfo is None
    assert torch.finfo is real and sys.meta_path == finders
    assert keeps.kept is real and other.kept is None
    assert keeps.__spec__ is not None and type(keeps.__spec__.loader) is type(other.__spec__.loader)  # type: ignore[union-attr]
    for name in ("keeps", "other"):
        del sys.modules[name]
