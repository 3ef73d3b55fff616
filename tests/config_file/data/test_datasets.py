"""Datasets and transforms that a file can name."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fxquant import ConfigError
from fxquant.config_file.data.datasets import open_dataset
from fxquant.config_file.data.loader import Loader
from fxquant.config_file.data.picture import Picture
from fxquant.config_file.data.transforms import TRANSFORMS, apply, check
from fxquant.config_file.sections.data import Dataloader, Transforms

image = pytest.importorskip("PIL.Image", reason="pictures need pillow")


def loader(**section: Any) -> Loader:
    return Loader(Dataloader.model_validate(section), "here", seed=3)


def picture(height: int, width: int, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    return image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))


def transformed(steps: dict[str, Any], source: Any, boxes: Any = None, seed: int = 0) -> Picture:
    asked = check(Transforms.model_validate(steps), "here")
    return apply(asked, Picture(image=source, boxes=boxes), torch.Generator().manual_seed(seed))


def test_image_folder(tmp_path: Path) -> None:
    for index, name in enumerate(("cat", "cat", "dog")):
        (tmp_path / name).mkdir(exist_ok=True)
        picture(20, 30, index).save(tmp_path / name / f"{index}.png")
    section = {
        "batch_size": 2,
        "dataset": {"ImageFolder": {"root": str(tmp_path)}},
        "transform": {"Resize": {"size": 16}, "CenterCrop": {"size": 12}, "ToTensor": None},
    }
    batches = list(loader(**section))
    assert [tuple(x.shape) for x, _ in batches] == [(2, 3, 12, 12), (1, 3, 12, 12)]
    assert torch.cat([y for _, y in batches]).tolist() == [0, 0, 1]
    assert len(list(loader(**section, last_batch="discard"))) == 1
    assert len(loader(**section)) == 2
    again = list(loader(**section, shuffle=True))
    assert all(torch.equal(a, b) for (a, _), (b, _) in zip(again, loader(**section, shuffle=True), strict=True))


def test_cifar10_in_both_of_its_forms(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pixels, labels = rng.integers(0, 256, (6, 3072), dtype=np.uint8), [3, 1, 4, 1, 5, 9]
    plain, pickled = tmp_path / "a" / "cifar-10-batches-bin", tmp_path / "b" / "cifar-10-batches-py"
    plain.mkdir(parents=True)
    pickled.mkdir(parents=True)
    rows = np.concatenate([np.array(labels, dtype=np.uint8)[:, None], pixels], 1)
    (plain / "test_batch.bin").write_bytes(rows.tobytes())
    (pickled / "test_batch").write_bytes(pickle.dumps({b"data": pixels, b"labels": labels}, protocol=2))
    one = open_dataset("CIFAR10", _settings("CIFAR10", tmp_path / "a"), "here", 0)
    other = open_dataset("CIFAR10", _settings("CIFAR10", tmp_path / "b"), "here", 0)
    assert [one[i][1] for i in range(len(one))] == labels == [other[i][1] for i in range(6)]
    assert np.array_equal(one[2][0], other[2][0])
    assert np.array_equal(one[2][0][..., 1], pixels[2].reshape(3, 32, 32)[1])


class Evil:
    def __reduce__(self) -> Any:
        return (print, ("run",))


@pytest.mark.parametrize("content", [pickle.dumps({b"data": Evil()}), b"cnumpy.f2py.__main__\ndtype\n."])
def test_a_pickle_with_code_is_not_run(content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "test_batch").write_bytes(content)
    with pytest.raises(ConfigError, match="no plain data"):
        open_dataset("CIFAR10", _settings("CIFAR10", tmp_path), "here", 0)
    assert capsys.readouterr().out == ""


def test_mnist(tmp_path: Path) -> None:
    images, labels = np.arange(2 * 4 * 4, dtype=np.uint8), np.array([7, 2], dtype=np.uint8)
    head = np.array([0x803, 2, 4, 4], dtype=">u4").tobytes()
    (tmp_path / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(head + images.tobytes()))
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(np.array([0x801, 2], dtype=">u4").tobytes() + labels.tobytes())
    found = open_dataset("MNIST", _settings("MNIST", tmp_path), "here", 0)
    assert found[1][1] == 2 and found[1][0].tolist() == images.reshape(2, 4, 4)[1].tolist()


def _settings(name: str, root: Path) -> Any:
    made = Dataloader.model_validate({"dataset": {name: {"root": str(root)}}})
    return made.dataset.chosen[1]


@pytest.mark.parametrize("short", [True, False])
def test_coco_boxes_move_with_the_picture(tmp_path: Path, short: bool) -> None:
    (tmp_path / "val2017").mkdir()
    picture(40, 80).save(tmp_path / "val2017" / "one.png")
    if short:
        content: Any = [{"file": "one.png", "boxes": [[5, 8, 4, 24, 12]]}]
    else:
        annotation = {"image_id": 7, "category_id": 5, "bbox": [8, 4, 16, 8], "iscrowd": 0}
        content = {"images": [{"id": 7, "file_name": "one.png"}], "annotations": [annotation], "categories": []}
    (tmp_path / "boxes.json").write_text(json.dumps(content))
    section = {"root": str(tmp_path), "anno_dir": "boxes.json"}
    steps = {"Resize": {"size": [20, 40]}, "ToTensor": None}
    ((x, (label,)),) = loader(dataset={"COCORaw": section}, transform=steps)
    assert x.shape == (1, 3, 20, 40)
    assert label["boxes"].tolist() == [[4, 2, 12, 6]] and label["labels"].tolist() == [5]


def test_dummy_is_the_same_for_the_same_seed() -> None:
    section = {"dataset": {"dummy": {"shape": [5, 3, 4, 4], "low": 0, "high": 1}}, "batch_size": 2}
    one, other = list(loader(**section)), list(loader(**section))
    assert [tuple(x.shape) for x, _ in one] == [(2, 3, 4, 4), (2, 3, 4, 4), (1, 3, 4, 4)]
    assert all(torch.equal(a, b) for (a, _), (b, _) in zip(one, other, strict=True))
    assert float(one[0][0].min()) >= 0 and float(one[0][0].max()) <= 1
    pair = {"dataset": {"dummy": {"shape": [[4, 3], [4, 2]], "label": False}}, "batch_size": 4}
    ((inputs, labels),) = loader(**pair)
    assert [tuple(x.shape) for x in inputs] == [(4, 3), (4, 2)] and labels is None


@pytest.mark.parametrize(
    ("dataset", "says"),
    [
        ({"ImageFolder": {"root": "/nowhere"}}, "/nowhere"),
        ({"CIFAR10": {"root": "/nowhere"}}, "Nothing is downloaded"),
        ({"TFRecordDataset": {"root": "x"}}, "calib_dataloader"),
        ({"ImagenetRaw": {"data_path": "/nowhere"}}, "list of labels"),
    ],
)
def test_data_that_cannot_be_read_says_what_to_do(dataset: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        loader(dataset=dataset)


def test_a_transform_of_other_frameworks_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match="ParseDecodeCoco"):
        transformed({"ParseDecodeCoco": {}}, picture(8, 8))


def test_steps_in_an_order_that_cannot_be_meant_are_refused() -> None:
    with pytest.raises(ConfigError, match="put ToTensor first"):
        transformed({"Normalize": {"mean": 0.5, "std": 0.2}, "ToTensor": None}, picture(8, 8))


STEPS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "Resize": ({"size": [10, 14]}, (10, 14)),
    "CenterCrop": ({"size": 12}, (12, 12)),
    "RandomResizedCrop": ({"size": 9}, (9, 9)),
    "RandomCrop": ({"size": [8, 9]}, (8, 9)),
    "RandomHorizontalFlip": ({}, (20, 30)),
    "RandomVerticalFlip": ({}, (20, 30)),
    "CropResize": ({"x": 2, "y": 3, "width": 10, "height": 8, "size": 6}, (6, 6)),
    "CropToBoundingBox": ({"offset_height": 1, "offset_width": 2, "target_height": 5, "target_width": 6}, (5, 6)),
    "PaddedCenterCrop": ({"size": 32}, (10, 10)),
    "ResizeWithRatio": ({"min_dim": 40, "max_dim": 50}, (33, 50)),
    "ResizeWithAspectRatio": ({"height": 16, "width": 16}, (16, 16)),
    "ResizeCropImagenet": ({"height": 8, "width": 8, "resize_side": 12}, (8, 8)),
    "BilinearImagenet": ({"height": 8, "width": 7}, (8, 7)),
    "AlignImageChannel": ({"dim": 3}, (20, 30)),
}


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("form", ["pil", "array", "floats"])
def test_a_transform_gives_its_size_in_every_form(name: str, form: str) -> None:
    settings, size = STEPS[name]
    source: Any = picture(20, 30)
    if form != "pil":
        source = np.asarray(source) if form == "array" else np.asarray(source).astype(np.float32)
    made = transformed({name: settings}, source)
    assert made.size == size
    again = transformed({name: settings}, source)
    assert np.array_equal(made.as_array().image, again.as_array().image)


def test_every_transform_of_the_table_can_be_written_in_a_file() -> None:
    assert TRANSFORMS.keys() <= Transforms.model_fields.keys()


def test_imagenet_steps_give_torchvisions_numbers() -> None:
    source = picture(50, 70)
    steps = {
        "Resize": {"size": 32},
        "CenterCrop": {"size": 28},
        "ToTensor": None,
        "Normalize": {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]},
    }
    made = transformed(steps, source).image
    resized = source.resize((44, 32), image.Resampling.BILINEAR).crop((8, 2, 36, 30))
    wanted = torch.from_numpy(np.array(resized)).movedim(-1, 0) / 255
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    assert torch.allclose(made, (wanted - mean[:, None, None]) / std[:, None, None], atol=1e-6)


def test_flips_and_crops_move_boxes() -> None:
    source, boxes = np.zeros((10, 20, 3), dtype=np.uint8), np.array([[2.0, 1.0, 6.0, 4.0]])
    flipped = Picture(image=source, boxes=boxes).flip(sideways=True)
    assert flipped.boxes.tolist() == [[14, 1, 18, 4]]
    assert Picture(image=source, boxes=boxes).flip(sideways=False).boxes.tolist() == [[2, 6, 6, 9]]
    assert Picture(image=source, boxes=boxes).crop(1, 2, 5, 5).boxes.tolist() == [[0, 0, 4, 3]]


def test_casts_and_orders() -> None:
    made = transformed(
        {"ToArray": {}, "Rescale": {}, "Transpose": {"perm": [2, 0, 1]}, "Cast": {"dtype": "float16"}}, picture(4, 6)
    )
    assert made.image.shape == (3, 4, 6) and made.image.dtype == np.float16 and made.image.max() <= 1
