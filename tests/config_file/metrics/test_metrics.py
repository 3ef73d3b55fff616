"""Metrics, against numbers worked out by hand or by others."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fxquant import ConfigError
from fxquant.config_file.metrics.average_precision import mean_average_precision, read_thresholds
from fxquant.config_file.metrics.metrics import make_metric
from fxquant.config_file.sections.evaluation import MeanPrecision, Metric

COCO = [0.5 + 0.05 * i for i in range(10)]


def score(name: str, settings: object, preds: object, labels: object) -> float:
    metric = make_metric(name, settings, "here")
    metric.update(preds, labels)
    return metric.result()


def test_topk_and_accuracy() -> None:
    scores = torch.tensor([[0.1, 0.9, 0.0], [0.8, 0.1, 0.1], [0.3, 0.3, 0.4]])
    labels = torch.tensor([1, 2, 2])
    assert score("topk", 1, scores, labels) == pytest.approx(2 / 3)
    assert score("topk", 5, scores, labels) == 1.0
    assert score("Accuracy", {}, scores, labels) == pytest.approx(2 / 3)


def test_f1_agrees_with_scikit_learn() -> None:
    from sklearn.metrics import f1_score

    preds, labels = torch.randint(0, 2, (50,)), torch.randint(0, 2, (50,))
    assert score("F1", {}, preds, labels) == pytest.approx(f1_score(labels, preds))
    many, wanted = torch.randint(0, 4, (80,)), torch.randint(0, 4, (80,))
    one_hot = torch.nn.functional.one_hot(many, 4).float()
    assert score("F1", {}, one_hot, wanted) == pytest.approx(f1_score(wanted, many, average="macro"))


def test_differences() -> None:
    one, other = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[1.0, 4.0], [3.0, 4.0]])
    assert score("MSE", None, one, other) == 1.0
    assert score("RMSE", None, one, other) == 1.0
    assert score("MAE", None, one, other) == 0.5
    with pytest.raises(ConfigError, match="shape"):
        score("MSE", None, one, torch.zeros(3))


def test_mean_intersection_over_union() -> None:
    preds, labels = torch.tensor([[[0, 0], [1, 1]]]), torch.tensor([[[0, 1], [1, 1]]])
    assert score("mIOU", {}, preds, labels) == pytest.approx((1 / 2 + 2 / 3) / 2)


def boxes(*rows: list[float]) -> np.ndarray:
    return np.array(rows, dtype=np.float64).reshape(-1, 4)


def test_average_precision_by_hand() -> None:
    truth = [{"boxes": boxes([0, 0, 10, 10], [20, 20, 30, 30]), "labels": np.array([1, 1])}]
    found = [
        {
            "boxes": boxes([0, 0, 10, 10], [50, 50, 60, 60], [20, 20, 30, 30]),
            "scores": np.array([0.9, 0.8, 0.7]),
            "labels": np.array([1, 1, 1]),
        }
    ]
    # precision is 1 up to recall 0.5, and 2/3 up to 1
    assert mean_average_precision(found, truth, [0.5], points=0) == pytest.approx(0.5 + 0.5 * 2 / 3)
    assert mean_average_precision(found, truth, [0.5], points=11) == pytest.approx((6 + 5 * 2 / 3) / 11)
    assert mean_average_precision(found, truth, [0.5]) == pytest.approx((51 + 50 * 2 / 3) / 101)
    assert mean_average_precision([{**found[0], "labels": np.array([2, 2, 2])}], truth, [0.5]) == 0.0


def random_pictures(seed: int) -> tuple[list[dict[str, np.ndarray]], list[dict[str, np.ndarray]]]:
    rng = np.random.default_rng(seed)
    found, truths = [], []
    for _ in range(12):
        n = int(rng.integers(0, 8))
        low, size, labels = rng.uniform(0, 80, (n, 2)), rng.uniform(5, 40, (n, 2)), rng.integers(1, 4, n)
        truths.append({"boxes": np.concatenate([low, low + size], 1), "labels": labels, "crowd": rng.random(n) < 0.1})
        twice = np.repeat(np.arange(n), 2)
        at, wide = low[twice] + rng.normal(0, 3, (2 * n, 2)), np.maximum(size[twice] + rng.normal(0, 3, (2 * n, 2)), 1)
        named = np.where(rng.random(2 * n) < 0.85, labels[twice], rng.integers(1, 4, 2 * n))
        found.append({"boxes": np.concatenate([at, at + wide], 1), "scores": rng.random(2 * n), "labels": named})
    return found, truths


# by pycocotools 2.0.11 on the same boxes
BY_COCO = {
    0: (0.12282242851614354, 0.3635494893065639),
    1: (0.19461347138545648, 0.5547084418352555),
    2: (0.1669157672926811, 0.47489496054421215),
}


@pytest.mark.parametrize("seed", range(3))
def test_average_precision_is_that_of_coco(seed: int) -> None:
    found, truths = random_pictures(seed)
    whole, half = BY_COCO[seed]
    assert mean_average_precision(found, truths, COCO) == pytest.approx(whole, abs=1e-9)
    assert mean_average_precision(found, truths, [0.5]) == pytest.approx(half, abs=1e-9)


def test_map_takes_lists_by_picture_and_batches_of_tensors() -> None:
    found, truths = random_pictures(1)
    asked = MeanPrecision(iou_thrs="0.5")
    by_picture = score("mAP", asked, found, truths)
    longest = max(len(each["scores"]) for each in found)

    def padded(name: str) -> torch.Tensor:
        rows = [
            np.concatenate([each[name], np.zeros((longest - len(each[name]), *each[name].shape[1:]))]) for each in found
        ]
        return torch.tensor(np.stack(rows))

    counts = torch.tensor([len(each["scores"]) for each in found])
    places = MeanPrecision(iou_thrs=0.5, output_index_mapping={"num_detections": 3})
    batch = (padded("boxes"), padded("scores"), padded("labels"), counts)
    assert by_picture > 0
    assert score("COCOmAPv2", places, batch, truths) == pytest.approx(by_picture)
    with pytest.raises(ConfigError, match="non-maximum suppression"):
        score("mAP", asked, torch.zeros(2, 3), truths)


def test_thresholds() -> None:
    assert read_thresholds("0.5:0.05:0.95") == pytest.approx(COCO)
    assert read_thresholds(0.5) == [0.5]


def test_a_metric_that_is_not_built_in_says_what_to_do() -> None:
    assert Metric.model_validate("BLEU").chosen == ("BLEU", {})
    with pytest.raises(ConfigError, match="eval_func"):
        make_metric("BLEU", {}, "evaluation.accuracy.metric")
