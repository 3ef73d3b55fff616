"""The datasets that a file can name: (picture, label) by index. Nothing is downloaded, and no file is run as code."""

from __future__ import annotations

import gzip
import io
import json
import pickle
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from fxquant.config_file.data.picture import pillow
from fxquant.config_file.sections.data import (
    COCORawSettings,
    Downloaded,
    Dummy,
    DummyV2,
    ImageFolderSettings,
    ImagenetRawSettings,
)
from fxquant.errors import ConfigError
from fxquant.files import Json

T = TypeVar("T")
Shape: TypeAlias = tuple[int, ...]

PICTURES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples that are made when they are asked for. Labels of detection data are dicts with `boxes`."""

    length: int
    sample: Callable[[int], tuple[object, object]]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[object, object]:
        return self.sample(index)


def open_dataset(name: str, settings: object, where: str, seed: int) -> Samples:
    """Return the dataset, by its name in a file."""
    if name not in DATASETS:
        raise ConfigError(
            f"{where}: the dataset {name} is not built in. Set the data in code: quantizer.calib_dataloader = ..., or "
            "use one of " + ", ".join(DATASETS) + "."
        )
    try:
        return DATASETS[name](settings, seed)
    except OSError as error:
        path = error.filename or ""
        raise ConfigError(f"{where}: cannot read the dataset {name}: {path}: {error.strerror or error}.") from None


def _from_files(files: Sequence[tuple[Path, object]]) -> Samples:
    def sample(index: int) -> tuple[object, object]:
        path, label = files[index]
        with pillow().open(path) as image:
            return image.convert("RGB"), label

    return Samples(len(files), sample)


def _image_folder(settings: ImageFolderSettings, seed: int) -> Samples:
    root = Path(settings.root)
    classes = sorted(entry.name for entry in root.iterdir() if entry.is_dir())
    files = [
        (path, label)
        for label, name in enumerate(classes)
        for path in sorted((root / name).rglob("*"))
        if path.suffix.lower() in PICTURES
    ]
    if not files:
        raise ConfigError(f"ImageFolder: {settings.root!r} has no pictures. It has to be root/class/picture.jpg.")
    return _from_files(files)


def _imagenet_raw(settings: ImagenetRawSettings, seed: int) -> Samples:
    root = Path(settings.data_path)
    names = ("val.txt", "val_map.txt")
    lists = (
        [Path(settings.image_list)]
        if settings.image_list
        else [base / n for base in (root, root.parent) for n in names]
    )
    found = next((path for path in lists if path.exists()), None)
    if found is None:
        raise ConfigError(f"ImagenetRaw: there is no list of labels; looked for {', '.join(map(str, lists))}.")
    rows = [line.split() for line in found.read_text().splitlines() if line.strip()]
    bad = next((row for row in rows if len(row) != 2 or not row[1].isdigit()), None)
    if bad is not None:
        raise ConfigError(f"ImagenetRaw: {found} has the line {' '.join(bad)!r}; expected `name label`.")
    return _from_files([(root / name, int(label)) for name, label in rows])


def _from_arrays(images: NDArray[np.uint8], labels: NDArray[np.uint8] | NDArray[np.int64]) -> Samples:
    return Samples(len(labels), lambda index: (images[index], int(labels[index])))


def _cifar(classes: int) -> Callable[[Downloaded, int], Samples]:
    def read(settings: Downloaded, seed: int) -> Samples:
        root = Path(settings.root)
        if classes == 10:
            names = [f"data_batch_{i}" for i in range(1, 6)] if settings.train else ["test_batch"]
            folders, ahead = ("cifar-10-batches-bin", "cifar-10-batches-py", "."), 1
        else:
            names, folders, ahead = (
                ["train" if settings.train else "test"],
                ("cifar-100-binary", "cifar-100-python", "."),
                2,
            )
        for folder in folders:
            plain = [root / folder / f"{name}.bin" for name in names]
            pickled = [root / folder / name for name in names]
            if all(path.is_file() for path in plain):
                rows = np.concatenate([np.fromfile(path, np.uint8).reshape(-1, ahead + 3072) for path in plain])
                return _from_arrays(_planes(rows[:, ahead:]), rows[:, ahead - 1])
            if all(path.is_file() for path in pickled):
                parts = [_PlainUnpickler(io.BytesIO(path.read_bytes()), encoding="bytes").load() for path in pickled]
                key = b"labels" if classes == 10 else b"fine_labels"
                labels = np.concatenate([np.array(part[key]) for part in parts])
                return _from_arrays(_planes(np.concatenate([part[b"data"] for part in parts])), labels)
        raise ConfigError(
            f"CIFAR{classes}: there are no files {', '.join(names)} below {settings.root!r}, as .bin or in the Python "
            f"form. Nothing is downloaded: unpack the archive of its authors there."
        )

    return read


def _planes(rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)


class _PlainUnpickler(pickle.Unpickler):
    """Arrays and plain values, and nothing that runs code."""

    _ALLOWED = (
        *(("numpy._core.multiarray", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype")),
        ("_codecs", "encode"),
    )

    def find_class(self, module: str, name: str) -> object:
        module = module.replace("numpy.core", "numpy._core")
        if (module, name) in self._ALLOWED:
            return super().find_class(module, name)
        raise ConfigError(f"CIFAR: the file has {module}.{name}, which is no plain data. It is not the authors' file.")


def _mnist(settings: Downloaded, seed: int) -> Samples:
    part = "train" if settings.train else "t10k"
    return _from_arrays(
        _idx(Path(settings.root), f"{part}-images-idx3-ubyte"), _idx(Path(settings.root), f"{part}-labels-idx1-ubyte")
    )


def _idx(root: Path, name: str) -> NDArray[np.uint8]:
    """Return the format of MNIST: a magic number with the count of dimensions, these, and bytes."""
    paths = [folder / f"{name}{end}" for folder in (root, root / "raw", root / "MNIST" / "raw") for end in ("", ".gz")]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        raise ConfigError(f"MNIST: there is no file {name} below {str(root)!r}. Nothing is downloaded: put it there.")
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    dims = [int(size) for size in np.frombuffer(content, ">u4", count=content[3], offset=4)]
    return np.frombuffer(content, np.uint8, offset=4 + 4 * len(dims)).reshape(dims)


def _coco(settings: COCORawSettings, seed: int) -> Samples:
    """Labels are {"boxes": (n, 4), "labels": (n), "crowd": (n), "image_id"}, boxes as x0, y0, x1, y1 in pixels."""
    root = Path(settings.root)
    content = json.loads((root / settings.anno_dir).read_text())
    files = _coco_short(content) if isinstance(content, list) else _coco_long(content)
    return _from_files([(root / settings.img_dir / name, label) for name, label in files])


def _coco_long(content: dict[str, list[Json]]) -> Iterable[tuple[str, object]]:
    by_image: dict[Any, list[Any]] = {}
    for each in content["annotations"]:
        by_image.setdefault(each["image_id"], []).append(each)
    for image in sorted(content["images"], key=lambda each: each["id"]):
        found = by_image.get(image["id"], [])
        boxes = [[x, y, x + w, y + h] for x, y, w, h in (each["bbox"] for each in found)]
        crowd = [bool(each.get("iscrowd")) for each in found]
        yield image["file_name"], _target(boxes, [each["category_id"] for each in found], crowd, image["id"])


def _coco_short(content: list[Json]) -> Iterable[tuple[str, object]]:
    """[{"file": ..., "boxes": [[class, x0, y0, x1, y1], ...]}]."""
    for index, each in enumerate(content):
        boxes = [box[1:] for box in each["boxes"]]
        yield each["file"], _target(boxes, [int(box[0]) for box in each["boxes"]], [False] * len(boxes), index)


def _target(boxes: list[list[float]], labels: list[int], crowd: list[bool], image_id: object) -> dict[str, object]:
    return {
        "boxes": np.array(boxes, dtype=np.float64).reshape(-1, 4),
        "labels": np.array(labels, dtype=np.int64),
        "crowd": np.array(crowd, dtype=bool),
        "image_id": image_id,
    }


def _dummy(settings: Dummy, seed: int) -> Samples:
    """Random numbers in [low, high); the first size is the number of samples."""
    several = isinstance(settings.shape[0], (list, tuple))
    shapes = [tuple(shape) for shape in settings.shape] if several else [tuple(settings.shape)]
    return _random(shapes, shapes[0][0], [shape[1:] for shape in shapes], settings, settings.label, seed)


def _dummy_v2(settings: DummyV2, seed: int) -> Samples:
    several = isinstance(settings.input_shape[0], (list, tuple))
    shapes = [tuple(shape) for shape in settings.input_shape] if several else [tuple(settings.input_shape)]
    return _random(shapes, 128, shapes, settings, settings.label_shape is not None, seed)


def _random(
    asked: list[Shape], count: int, shapes: list[Shape], settings: Dummy | DummyV2, label: bool, seed: int
) -> Samples:
    if not all(isinstance(size, int) and size > 0 for shape in asked for size in shape):
        raise ConfigError(f"dummy: the shape {asked} has to be of whole numbers above 0.")

    def one(values: list[T], position: int) -> T:
        return values[position] if position < len(values) else values[-1]

    def sample(index: int) -> tuple[object, object]:
        rng = torch.Generator().manual_seed(seed * 1_000_003 + index)
        made = []
        for position, shape in enumerate(shapes):
            low, high = one(settings.low, position), one(settings.high, position)
            value = torch.rand(shape, generator=rng) * (high - low) + low
            made.append(value.to(getattr(torch, one(settings.dtype, position))))
        return (made[0] if len(made) == 1 else tuple(made)), (0 if label else None)

    return Samples(count, sample)


DATASETS: dict[str, Callable[[Any, int], Samples]] = {
    "ImageFolder": _image_folder,
    "ImagenetRaw": _imagenet_raw,
    "CIFAR10": _cifar(10),
    "CIFAR100": _cifar(100),
    "MNIST": _mnist,
    "FashionMNIST": _mnist,
    "COCORaw": _coco,
    "dummy": _dummy,
    "dummy_v2": _dummy_v2,
}
