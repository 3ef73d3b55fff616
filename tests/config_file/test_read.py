"""Files are read as Neural Compressor 1.x has them; mistakes are named with line, key and closest name."""

from __future__ import annotations

from pathlib import Path

import pytest

from fxquant import ConfigError
from fxquant.config_file import read_conf

FILE = """
version: 1.0
model:
  name: resnet50
  framework: pytorch_fx
quantization:
  calibration:
    sampling_size: 300
    dataloader:
      batch_size: 30
      dataset:
        ImageFolder:
          root: /path/to/calibration/dataset
      transform:
        RandomResizedCrop:
          size: 224
        RandomHorizontalFlip:
        ToTensor:
        Normalize:
          mean: [0.485, 0.456, 0.406]
          std: [0.229, 0.224, 0.225]
  op_wise: {
    'layer1.0.conv1': {
      'activation': {'dtype': ['uint8', 'fp32'], 'algorithm': ['minmax', 'kl'], 'scheme': ['sym']},
      'weight': {'dtype': ['int8', 'fp32'], 'algorithm': ['minmax'], 'granularity': 'per_channel, per_tensor'}
    },
    'default_qconfig': {'activation': {'dtype': ['fp32']}, 'weight': {'dtype': ['fp32']}}
  }
  optype_wise:
evaluation:
  accuracy:
    metric:
      topk: 1
    dataloader:
      batch_size: 30
      dataset: {dummy: {shape: [16, 3, 8, 8]}}
  performance:
    configs: {cores_per_instance: 4, num_of_instance: 7}
tuning:
  strategy:
    name: bayesian
  accuracy_criterion:
    relative: 1%
  exit_policy:
    timeout: 0
  random_seed: 9527
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "conf.yaml"
    path.write_text(text)
    return path


def test_a_file_of_1_x_is_read_unchanged(tmp_path: Path) -> None:
    conf, notes = read_conf(write(tmp_path, FILE))
    steps = conf.quantization.calibration.dataloader
    assert steps is not None
    assert [name for name, _ in steps.transform.steps] == [
        "RandomResizedCrop", "RandomHorizontalFlip", "ToTensor", "Normalize",
    ]  # fmt: skip
    assert conf.quantization.op_wise["layer1.0.conv1"].weight.granularity == ["per_channel", "per_tensor"]
    assert conf.quantization.calibration.sampling_size == [300]
    assert conf.tuning.accuracy_criterion.tolerance == 0.01
    assert len(notes) == 1 and "evaluation.performance" in notes[0]


def test_defaults_are_those_of_1_x() -> None:
    conf, notes = read_conf({"model": {"name": "m", "framework": "pytorch_fx"}})
    assert conf.quantization.approach == "post_training_static_quant"
    assert conf.quantization.calibration.sampling_size == [100]
    assert conf.quantization.recipes.first_conv_or_matmul_quantization
    assert conf.tuning.strategy.name == "basic"
    assert (conf.tuning.exit_policy.timeout, conf.tuning.exit_policy.max_trials) == (0, 100)
    assert conf.tuning.random_seed == 1978
    assert notes == ()


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("sampling_size", "sampling_sise", r"conf\.yaml:8: .*sampling_sise.* Closest: 'sampling_size'"),
        ("bayesian", "bayesain", r"conf\.yaml:\d+: tuning.strategy.name: is 'bayesain'.* Closest: 'bayesian'"),
        ("Normalize", "Normalise", r"transform.Normalise: .* Closest: 'Normalize'"),
        ("dummy", "dumy", r"dataset.dumy: .* Closest: 'dummy'"),
        ("size: 224", "size: wide", r"conf\.yaml:16: .*RandomResizedCrop.size"),
        ("topk: 1", "topk: 3", r"topk is 3; expected 1 or 5"),
        ("relative: 1%", "{relative: 1%, absolute: 1}", "accuracy_criterion"),
        ("random_seed: 9527", "random_seed: 9527\nversion: 1.0", r"conf\.yaml:\d+: the key version is there twice"),
        ("version: 1.0", "version: [", "is not YAML"),
        ("version: 1.0", "version: 2001-13-45", r"conf\.yaml:\d+: '2001-13-45' is no timestamp"),
        ("version: 1.0", "version: !!python/object/apply:os.getcwd []", "is not YAML"),
        ("framework: pytorch_fx", "framework: pytorch_fix", "Closest: 'pytorch_fx'"),
    ],
)
def test_a_mistake_is_named_with_its_line_and_what_is_close(tmp_path: Path, old: str, new: str, says: str) -> None:
    path = write(tmp_path, FILE.replace(old, new, 1))
    with pytest.raises(ConfigError, match=says):
        read_conf(path)


def test_aliases_that_stand_for_too_much_are_refused(tmp_path: Path) -> None:
    lines = ["a: &a [x, x, x, x, x, x, x, x, x, x]"]
    for one, other in zip("abcdef", "bcdefg", strict=True):
        lines.append(f"{other}: &{other} [{', '.join([f'*{one}'] * 10)}]")
    with pytest.raises(ConfigError, match="aliases"):
        read_conf(write(tmp_path, "\n".join(lines)))


@pytest.mark.parametrize("text", ["a: &a [*a]", "a: " + "[" * 3000 + "]" * 3000])
def test_a_value_inside_of_itself_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="inside of itself"):
        read_conf(write(tmp_path, text))


@pytest.mark.parametrize("text", ["", "just words", "[1, 2]"])
def test_a_file_without_a_mapping_says_so(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="no mapping"):
        read_conf(write(tmp_path, text))


def test_a_file_that_is_not_there_names_what_writes_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="fxquant init"):
        read_conf(tmp_path / "none.yaml")


@pytest.mark.parametrize("size", ["0", "-1", "true", "[100, 0]", "[]", "'100, -5'", "1.5"])
def test_a_number_of_samples_is_one_or_more(tmp_path: Path, size: str) -> None:
    """`true` was taken for one sample, and zero or less for any number."""
    text = f"model: {{name: x, framework: pytorch_fx}}\nquantization: {{calibration: {{sampling_size: {size}}}}}\n"
    with pytest.raises(ConfigError, match=r":2: quantization\.calibration\.sampling_size"):
        read_conf(write(tmp_path, text))


@pytest.mark.parametrize("lists", ["weight: 0.5 0.5, higher_is_better: 'true false'", "weight: [0.5, 0.5]"])
def test_lists_of_several_metrics_and_of_diagnosis_are_written_as_anywhere(tmp_path: Path, lists: str) -> None:
    metrics = f"evaluation: {{accuracy: {{multi_metrics: {{topk: 1, MSE: {{}}, {lists}}}}}}}"
    diagnosis = "tuning: {diagnosis: {op_list: 'conv1, conv2', iteration_list: 1}}"
    conf, _ = read_conf(write(tmp_path, f"model: {{name: x}}\n{metrics}\n{diagnosis}\n"))
    assert conf.evaluation.accuracy is not None and conf.evaluation.accuracy.multi_metrics is not None
    assert conf.evaluation.accuracy.multi_metrics["weight"] == [0.5, 0.5]
    assert conf.evaluation.accuracy.multi_metrics.get("higher_is_better", [True, False]) == [True, False]
    assert conf.tuning.diagnosis is not None
    assert (conf.tuning.diagnosis.op_list, conf.tuning.diagnosis.iteration_list) == (["conv1", "conv2"], [1])


def test_a_value_of_another_kind_is_said_with_what_is_expected(tmp_path: Path) -> None:
    text = "model: {name: x}\ntuning: {exit_policy: {timeout: soon}}\n"
    with pytest.raises(ConfigError, match=r":2: tuning\.exit_policy\.timeout: is 'soon'; expected a valid number"):
        read_conf(write(tmp_path, text))
