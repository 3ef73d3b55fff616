"""Rules: priority, every form of mapping, unmatched rules, torch.ao's own objects."""

from __future__ import annotations

import functools
import operator
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxquant as fq
from fxquant.config.rules import Rules, Site
from fxquant.graph.region import regions
from fxquant.ops.table import OPS
from fxquant.passes.candidates import same_op

A, B, C, D, E = (fq.QConfig(weight=fq.Spec(bits=bits)) for bits in (8, 7, 6, 5, 4))


def rules(source: object) -> Rules:
    return Rules(source, functools.partial(same_op, OPS))


def site(path: str, *types: object, kind: str = "conv2d", scope: tuple = (), order: int = 0) -> Site:
    spelling, kind = types or (nn.Conv2d, kind)
    return Site(path=path, kind=kind, spelling=spelling, scope=scope, order=order)


def test_priority_rises_from_global_to_order() -> None:
    mapping = fq.QConfigMapping().set_global(A)
    assert rules(mapping).choose(site("block.conv")).qconfig is A
    mapping.set_object_type(nn.Conv2d, B)
    assert rules(mapping).choose(site("block.conv")).qconfig is B
    mapping.set_module_name_regex("block.*", C)
    assert rules(mapping).choose(site("block.conv")).qconfig is C
    mapping.set_module_name("block", D)
    assert rules(mapping).choose(site("block.conv")).qconfig is D
    mapping.set_module_name_object_type_order("block", nn.Conv2d, 0, E)
    at = site("block.conv", scope=(("", "m.M"), ("block", "m.Block")))
    assert rules(mapping).choose(at).qconfig is E


def test_nearest_parent_wins_and_prefixes_are_whole_names() -> None:
    mapping = fq.QConfigMapping().set_global(A).set_module_name("a", B).set_module_name("a.b", None)
    choose = rules(mapping).choose
    assert choose(site("a.b.c")).qconfig is None
    assert choose(site("a.x")).qconfig is B
    assert choose(site("ab.x")).qconfig is A


def test_first_regex_in_order_wins() -> None:
    mapping = fq.QConfigMapping().set_module_name_regex(r"layer\d", A).set_module_name_regex("layer1", B)
    assert rules(mapping).choose(site("layer1.conv")).qconfig is A


@pytest.mark.parametrize(
    ("rule", "types"),
    [
        (nn.Linear, (nn.Linear, "linear")),
        (F.linear, (nn.Linear, "linear")),
        (torch.add, (operator.add, "add")),
        (operator.add, (torch.ops.aten.add.Tensor, "add")),
        ("add", (torch.add, "add")),
        (nn.ReLU, (F.relu, "relu")),
    ],
    ids=["module", "functional_to_module", "torch_to_operator", "operator_to_aten", "name", "module_to_functional"],
)
def test_object_type_matches_every_spelling(rule: object, types: tuple) -> None:
    assert rules(fq.QConfigMapping().set_object_type(rule, B)).choose(site("x", *types)).qconfig is B


def test_object_type_of_one_module_class_leaves_its_sister_alone() -> None:
    mapping = fq.QConfigMapping().set_global(A).set_object_type(nn.ReLU6, B)
    assert rules(mapping).choose(site("x", nn.Hardtanh, "clamp")).qconfig is A


def test_object_type_matches_the_enclosing_module() -> None:
    scope = (("", "m.M"), ("seq", f"{nn.Sequential.__module__}.{nn.Sequential.__qualname__}"))
    mapping = fq.QConfigMapping().set_global(A).set_object_type(nn.Sequential, None)
    assert rules(mapping).choose(site("seq.0", scope=scope)).qconfig is None


def test_dict_forms_agree() -> None:
    mapping = fq.QConfigMapping().set_global(A).set_module_name("sub", B).set_module_name("sub.conv", None)
    assert fq.QConfigMapping.from_dict({"": A, "sub": B, "sub.conv": None}) == mapping
    assert fq.QConfigMapping.from_dict({"": A, "module_name": [("sub", B), ("sub.conv", None)]}) == mapping
    full = mapping.set_object_type(nn.Conv2d, C).set_module_name_regex("x.*", D)
    full.set_module_name_object_type_order("sub", F.relu, 1, None)
    assert fq.QConfigMapping.from_dict(full.to_dict()) == full


def test_unknown_dict_key_names_the_closest() -> None:
    with pytest.raises(fq.ConfigError, match=r"'object_typ' is unknown\. Closest: 'object_type'"):
        fq.QConfigMapping.from_dict({"": A, "object_typ": [(nn.Conv2d, None)]})


def test_setters_first_answer_wins() -> None:
    def first(name: str, kind: str, op: object) -> object:
        return "float" if name == "head" else None

    def second(name: str, kind: str, op: object) -> object:
        return B if kind == "conv2d" else None

    choose = rules((first, second)).choose
    assert choose(site("head")).qconfig is None
    assert choose(site("body")).qconfig is B
    assert choose(site("act", nn.ReLU, "relu")).qconfig is None


def test_unmatched_rules_name_the_closest_path() -> None:
    found = rules(fq.QConfigMapping().set_module_name("layr1.conv1", None).set_object_type(nn.Conv3d, None))
    found.choose(site("layer1.conv1"))
    lines = found.unmatched(["layer1", "layer1.conv1"])
    assert any(re.search(r"module_name='layr1.conv1'\) matches no module. Closest: 'layer1.conv1'", x) for x in lines)
    assert any("object_type=Conv3d" in line for line in lines)


def test_a_rule_that_matched_but_lost_is_not_unmatched() -> None:
    found = rules(fq.QConfigMapping().set_object_type(nn.Conv2d, A).set_module_name("x", B))
    found.choose(site("x"))
    assert found.unmatched(["x"]) == []


@pytest.mark.parametrize("source", [3, "x86", None, ()], ids=repr)
def test_what_is_no_mapping_is_refused(source: object) -> None:
    with pytest.raises(fq.ConfigError, match="not a qconfig mapping"):
        rules(source)


def test_torch_ao_objects_are_read_by_their_attributes() -> None:
    ao = pytest.importorskip("torch.ao.quantization")
    mapping = ao.get_default_qconfig_mapping("x86")
    choice = rules(mapping).choose(site("conv"))
    assert choice.qconfig is not None
    activation, weight = choice.qconfig.activation, choice.qconfig.weight
    assert (activation.bits, activation.signed, activation.symmetric, activation.observer) == (
        7,
        False,
        False,
        "histogram",
    )
    assert (weight.bits, weight.signed, weight.granularity, weight.axis) == (8, True, "per_channel", 0)
    assert rules(mapping).unmatched([]) == []  # its rules for types the model lacks are no mistake


def test_torch_ao_qat_and_dynamic_qconfigs() -> None:
    ao = pytest.importorskip("torch.ao.quantization")
    assert rules({"": ao.get_default_qat_qconfig("x86")}).is_training
    dynamic = fq.QConfigMapping().set_global(ao.default_dynamic_qconfig).global_qconfig
    assert dynamic is not None
    assert dynamic.is_dynamic
    float16 = fq.QConfigMapping().set_global(ao.float16_static_qconfig).global_qconfig
    assert float16 == fq.QConfig(weight="float16")


class Parts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x)) + x


@pytest.mark.parametrize(
    "key", [{"standalone_module_name": ["first"]}, {"standalone_module_class": [nn.Sequential]}], ids=["name", "class"]
)
def test_a_qconfig_dict_names_standalone_modules(key: dict) -> None:
    qconfig = fq.get_default_qconfig("x86")
    config = {"": qconfig, "object_type": [(nn.ReLU, qconfig)], **key}
    prepared = fq.prepare_fx(Parts().eval(), config, (torch.randn(2, 4),))
    assert [path for path, _ in regions(prepared)] == ["", "first"]
    mapping = fq.QConfigMapping.from_dict(config)
    assert mapping == fq.QConfigMapping.from_dict(mapping.to_dict())
    flat = fq.prepare_fx(Parts().eval(), {"": qconfig, "last": None, **key}, (torch.randn(2, 4),))
    assert [path for path, _ in regions(flat)] == ["", "first"]


@pytest.mark.parametrize(
    ("name", "op"), [("torch.nn.functional.add", "add"), ("torch.nn.Linear", "linear"), ("torch.relu", "relu")]
)
def test_a_dotted_name_stands_for_what_torch_has_or_had(name: str, op: str, caplog: pytest.LogCaptureFixture) -> None:
    config = {"": fq.get_default_qconfig("x86"), "object_type": [(name, None), (None, None)]}
    rows = fq.explain(fq.prepare_fx(Parts().eval(), config, (torch.randn(2, 4),)))
    assert {row.rule for row in rows if row.kind == op} == {f"object_type={name}"}
    assert ("read as 'add'" in caplog.text) == (op == "add")


def test_set_global_on_the_class_starts_a_mapping() -> None:
    qconfig = fq.get_default_qconfig("x86")
    assert fq.QConfigMapping.set_global(qconfig) == fq.QConfigMapping().set_global(qconfig)


def test_forms_that_nearly_fit_say_what_to_give() -> None:
    with pytest.raises(fq.ConfigError, match=r"\['module_name'\] has the entry 'fc'\. Give a list of pairs"):
        rules({"module_name": ("fc", None)})
    with pytest.raises(fq.ConfigError, match="a QConfigMapping is not a qconfig"):
        rules({"": fq.get_default_qconfig_mapping()})
    with pytest.raises(fq.ConfigError, match=r"cannot be called with \(name, kind, op\): too many"):
        rules(lambda name: None)
