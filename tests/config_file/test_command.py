"""The commands: init, schema, quantize."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import fxquant as fq
from fxquant.cli import app
from fxquant.config_file import read_conf
from fxquant.config_file.template import template
from fxquant.numerics.affine import sqnr_db

JOB = """
import torch
from torch import nn

def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5)).eval()

def batches():
    torch.manual_seed(1)
    return [torch.randn(4, 3, 8, 8) for _ in range(2)]

def score(given):
    return 1.0

NUMBER = 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / f"job_{tmp_path.name}.py").write_text(JOB)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, words)
    assert result.exit_code == code, result.output
    return result.output


def test_init_writes_a_file_that_is_read_without_notes(folder: Path) -> None:
    assert "fxquant quantize" in run("init")
    conf, notes = read_conf(folder / "conf.yaml")
    assert notes == () and conf.tuning.exit_policy.max_trials == 100
    assert "is there already" in run("init", code=1)
    run("init", "other.yaml", "--approach", "weight_only")
    assert read_conf(folder / "other.yaml")[0].quantization.approach == "weight_only"


def test_all_that_the_template_has_in_comments_is_valid(folder: Path) -> None:
    (folder / "all.yaml").write_text(
        "\n".join(line.replace("# ", "", 1) if _is_key(line) else line for line in _lines())
    )
    conf, _ = read_conf(folder / "all.yaml")
    assert conf.evaluation.accuracy is not None and "head" in conf.quantization.op_wise


def _lines() -> list[str]:
    return [line for line in template().splitlines() if not line.strip().startswith(("# How", "# every", "# post_"))]


def _is_key(line: str) -> bool:
    return line.strip().startswith("#")


def test_quantize_saves_a_model_that_loads(folder: Path) -> None:
    run("init")
    job = f"job_{folder.name}"
    words = [
        "quantize",
        "conf.yaml",
        "--engine",
        "onednn",
        "--model",
        f"{job}:model",
        "--calibration",
        f"{job}:batches",
    ]
    assert "was not looked at" in run(*words, "--output", "out")
    assert "within the tolerance after 1 trial" in run(*words, "--evaluate", f"{job}:score", "--output", "b.fq")
    x = torch.randn(2, 3, 8, 8)
    one, other = fq.load("out"), fq.load("b.fq")
    assert sqnr_db(one(x), other(x)) > 25  # trials run the fast algorithms
    assert fq.explain(one).counts() == fq.explain(other).counts()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (["--model", "nowhere_at_all:model"], "there is no module 'nowhere_at_all'"),
        (["--model", "{job}:modle"], "Closest: 'model'"),
        (["--model", "{job}"], "expected package.module:function"),
        (["--model", "{job}:NUMBER"], "Name a function"),
        (["--model", "{job}:model"], "calib_dataloader"),
    ],
)
def test_an_error_is_one_line(folder: Path, change: list[str], says: str) -> None:
    run("init")
    output = run("quantize", "conf.yaml", *(word.format(job=f"job_{folder.name}") for word in change), code=1)
    assert says in output and len(output.strip().splitlines()) == 1
    debugged = CliRunner().invoke(
        app, ["quantize", "conf.yaml", *(word.format(job=f"job_{folder.name}") for word in change), "--debug"]
    )
    assert isinstance(debugged.exception, fq.ConfigError)


def test_the_schema_is_json() -> None:
    assert "quantization" in json.loads(run("schema"))["properties"]
