"""Targets as files: plain values and back, and what is wrong with one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

import fxquant as fq
from fxquant.targets import TARGETS, by_name
from fxquant.targets.file import from_plain, to_plain


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_goes_to_plain_values_and_back(name: str, tmp_path: Path) -> None:
    target = by_name(name)
    (tmp_path / "t.yaml").write_text(yaml.safe_dump(to_plain(target)))
    assert fq.load_target(tmp_path / "t.yaml") == target
    assert from_plain(json.loads(json.dumps(to_plain(target)))) == target


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("base: TensorT", r"t.yaml.base: target 'TensorT' is unknown. Closest: 'tensorrt'"),
        ("base: arm\nkindz: [conv2d]", "no field 'kindz'. Closest: 'kinds'"),
        ("base: arm\nactivation: {bit: 8}", "no field 'bit'. Closest: 'bits'"),
        ("base: arm\nkinds: [conv2e]", "not in the op table: conv2e. Closest: 'conv2d'"),
        ("base: arm\nactivation: {signed: false}", "default activation has unsigned, not signed"),
        ("base: arm\npositions: [{measure: cat, kinds: [conv2d], low: 0}]", "expected one of 'cut'"),
        ("base: arm\nkinds: conv2d", "Give a list of kinds"),
        ("name: x", "t.yaml lacks kinds, activation, weight. Give them, or base:"),
        ("base: arm\nbias: int9", "t.yaml.bias is 'int9'. Give int32, the fields of a Spec, or null for float"),
        ("base: arm\nshapes: {size: -1}", "Shapes: -1 is no limit"),
        ("base: arm\nkernels: {avg_pool: {window: 0}}", "Kernel: 0 is no limit"),
        ("base: arm\nactivations: {ends: [5, -5]}", "expected (lowest, highest"),
        ("base: arm\nname: ''", "give it a name"),
        ("[1]", "Give a mapping"),
        ("!!python/object/apply:os.getcwd []", "not YAML"),
        ("base: arm\nname: a\nname: b", "the key name is there twice"),
        ("base: arm\nname: 5", "name=5.: expected a text"),
        ("base: arm\nname: 2001-13-45", "is no timestamp"),
        ("base: arm\nranges: {sigmoid: [a, b]}", "expected a dict"),
        ("base: arm\nranges: {sigmoid: [0, .nan]}", "the range of sigmoid is"),
        (f"base: arm\nactivation: [{'x' * 999}]", "holds ['x{78}. Give a mapping"),
        ("base: " + "[" * 3000 + "]" * 3000, "nested too deep"),
    ],
)
def test_a_bad_file_says_what_is_wrong(text: str, error: str, tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text(text)
    with pytest.raises(fq.ConfigError, match=error.replace("[", r"\[").replace("(", r"\(")):
        fq.load_target(tmp_path / "t.yaml")


def test_a_known_name_is_no_file() -> None:
    with pytest.raises(fq.ConfigError, match="known target: target='xint8' takes it"):
        fq.load_target("xint8")
