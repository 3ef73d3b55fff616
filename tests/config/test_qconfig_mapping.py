"""Rules by setters, by dicts of two forms, and back."""

from __future__ import annotations

import pytest
from torch import nn

import fxquant as fq
from fxquant.config.qconfig_mapping import QConfigMapping
from fxquant.errors import ConfigError

Q = fq.default_qconfig


def test_the_structured_form_comes_back() -> None:
    mapping = QConfigMapping().set_global(Q).set_object_type(nn.Linear, None).set_module_name("head", Q)
    mapping.set_module_name_regex("a.*", None).set_module_name_object_type_order("b", nn.Conv2d, 1, Q)
    assert QConfigMapping.from_dict(mapping.to_dict()) == mapping
    assert [q is None for q in mapping.qconfigs()].count(True) == 2


def test_the_flat_form_names_modules() -> None:
    assert QConfigMapping.from_dict({"": Q, "head": None}).module_name_qconfigs == {"head": None}


def test_mistakes_get_the_closest_name() -> None:
    with pytest.raises(ConfigError, match="Closest: 'module_name'"):
        QConfigMapping.from_dict({"module_nam": [("a", Q)]})
    with pytest.raises(ConfigError, match="has the entry"):
        QConfigMapping.from_dict({"module_name": [("a", Q, 1, 2)]})
