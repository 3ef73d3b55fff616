"""Quantize a detector after training and in training: `python examples/detection.py --data DIR`.

YOLOX-Nano as a whole, its head included; boxes are decoded outside of it. Three models:

PTQ int8            float scales, as CPUs run it
PTQ power-of-two    every scale a power of two, as hardware with shifts runs it
QAT power-of-two    the same grids, thresholds learned (TQT) with the float model as teacher, on training pictures only

Its training graph is not its evaluation graph: in train mode the model gives raw maps for the loss, in eval mode
scores. With `--data` (COCO pictures and trained weights) the score is mAP@0.5:0.95 by pycocotools. Without it the
weights are random and the pictures crops of two photographs: it shows the flow, and prints the outputs' SQNR.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence

import torch
from _coco import FILES, Pictures, average_precision, detect, load_pictures, load_yolox
from _command import options
from _yolox import YoloxNano
from torch import Tensor, nn
from torch.nn import functional as F

import fxquant as fq

Maps = list[tuple[Tensor, Tensor, Tensor]]
U8 = fq.Spec(signed=False, symmetric=False)
S8_POW2 = fq.Spec(scale="pow2")
WEIGHT = fq.Spec(granularity="per_channel")


def rules(activation: fq.Spec, weight: fq.Spec, depthwise: fq.Spec) -> fq.QConfigMapping:
    """Specs for all tensors, and one for the inputs of depthwise convolutions: there each channel has its own scale.

    Channels of these tensors differ by factors of 50, and meet only filters of their own, so that their scales go into
    those of the weights.
    """
    by_channel = depthwise.with_(granularity="per_channel", axis=1)
    every = fq.QConfig(activation=activation, weight=weight)
    depth = fq.QConfig(activation=activation, weight=weight, input=by_channel)
    return fq.QConfigMapping().set_global(every).set_module_name_regex(r".*depth\.conv", depth)


INT8 = rules(U8, WEIGHT, U8.with_(observer="minmax"))
POW2 = rules(S8_POW2, WEIGHT.with_(scale="pow2"), S8_POW2.with_(observer="minmax"))
# thresholds are learned per tensor; scales by channel stay where calibration put them
TRAINING = rules(
    S8_POW2.with_(learn="tqt"),
    WEIGHT.with_(learn="tqt"),
    S8_POW2.with_(learn="ste", observer="moving_average"),
)


def calibrated(model: nn.Module, batches: Sequence[Tensor], mapping: fq.QConfigMapping) -> nn.Module:
    """Prepared and calibrated."""
    prepared = fq.prepare_fx(copy.deepcopy(model).eval(), mapping, (batches[0][:1],), target="x86-vnni")
    return fq.calibrate(prepared, batches)


def distance(maps: Maps, wanted: Maps) -> Tensor:
    """Of the student's maps from the teacher's: scores by cross entropy, boxes where the teacher sees something."""
    total = torch.zeros(())
    for (box, thing, kind), (true_box, true_thing, true_kind) in zip(maps, wanted, strict=True):
        weight = true_thing.sigmoid()
        total = total + F.binary_cross_entropy_with_logits(thing, weight, reduction="sum")
        kinds = F.binary_cross_entropy_with_logits(kind, true_kind.sigmoid(), reduction="none")
        total = total + (weight * kinds).sum() + 5.0 * (weight * (box - true_box).abs()).sum()
    return total / len(maps[0][0])


class Teacher:
    """Pictures, and what the float model makes of them and of their mirror images: found once, kept as halves."""

    @torch.no_grad()
    def __init__(self, model: nn.Module, images: Tensor) -> None:
        self.images = images
        model = copy.deepcopy(model).train()  # the maps, not the scores
        found = [[model(self.pictures(index, side)) for index in torch.arange(len(images)).split(6)] for side in (0, 1)]
        self.maps = [_joined(maps) for maps in found]

    def pictures(self, index: Tensor, mirrored: int) -> Tensor:
        pictures = self.images[index].float()
        return pictures.flip(3) if mirrored else pictures

    def distance(self, student: nn.Module, index: Tensor, mirrored: int = 0) -> Tensor:
        """Of the student's maps for some of the pictures."""
        wanted = [tuple(part[index].float() for part in level) for level in self.maps[mirrored]]
        return distance(student(self.pictures(index, mirrored)), wanted)


def _joined(batches: Sequence[Maps]) -> Maps:
    levels = zip(*batches, strict=True)
    return [tuple(torch.cat([part.half() for part in parts]) for parts in zip(*level, strict=True)) for level in levels]


def groups(prepared: nn.Module, lr: float, range_lr: float) -> list[dict[str, object]]:
    """For Adam, whose steps are absolute: those of a weight are a share of its size, since folded ones differ a lot."""
    weights, vectors, ranges = fq.parameter_groups(prepared, lr, range_lr, 0.0)
    own = [
        {"params": [parameter], "lr": lr * float(parameter.detach().square().mean().sqrt())}
        for group in (weights, vectors)
        for parameter in group["params"]
    ]
    return [*own, ranges]


def train(
    prepared: nn.Module,
    teacher: Teacher,
    *,
    epochs: int,
    lr: float,
    range_lr: float,
    batch: int = 6,
    each_epoch: Callable[[int, float], None] = lambda epoch, loss: None,
) -> None:
    """Adam with a falling rate; of the states after each epoch, the nearest to the teacher on held-out pictures stays.

    A fifth of the pictures is held out.
    """
    share = len(teacher.images) * 4 // 5
    held_out = torch.arange(share, len(teacher.images))
    generator = torch.Generator().manual_seed(0)
    for parameter in (prepared.stem.conv.weight, prepared.stem.conv.bias):
        parameter.requires_grad_(False)  # it sees pixels up to 255, whose sum makes a large step of a small one
    optimizer = torch.optim.Adam(groups(prepared, lr, range_lr))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * math.ceil(share / batch))
    prepared.train()
    best: tuple[float, dict[str, Tensor]] = (math.inf, {})
    for epoch in range(epochs + 1):
        with torch.no_grad():
            parts = held_out.split(batch)
            loss = sum(float(teacher.distance(prepared, part)) * len(part) for part in parts) / len(held_out)
        each_epoch(epoch, loss)
        if loss < best[0]:
            best = (loss, copy.deepcopy(prepared.state_dict()))
        if epoch == epochs:
            break
        for index in torch.randperm(share, generator=generator).split(batch):
            optimizer.zero_grad()
            mirrored = int(torch.randint(0, 2, (), generator=generator))
            teacher.distance(prepared, index, mirrored).backward()
            nn.utils.clip_grad_norm_(prepared.parameters(), 10.0)
            optimizer.step()
            schedule.step()
    prepared.load_state_dict(best[1])
    prepared.eval()


def trained(model: nn.Module, post: nn.Module, images: Tensor, **options: object) -> nn.Module:
    """The model after training with power-of-two scales, from where `post` was calibrated."""
    example = (images[:1].float(),)
    prepared = fq.prepare_qat_fx(copy.deepcopy(model).train(), TRAINING, example, target="x86-vnni")
    prepared.load_state_dict(post.state_dict())
    fq.freeze_observers(prepared)
    train(prepared, Teacher(model, images), **{"epochs": 5, "lr": 5e-5, "range_lr": 2e-2, **options})
    return prepared


def photographs(count: int, size: int) -> Tensor:
    """Crops of the two photographs in scikit-learn, as YOLOX takes pictures."""
    from sklearn.datasets import load_sample_images

    generator = torch.Generator().manual_seed(0)
    crops = []
    for index in range(count):
        picture = torch.from_numpy(load_sample_images().images[index % 2].copy()).permute(2, 0, 1).flip(0)
        top, left = (int(torch.randint(0, side - size, (), generator=generator)) for side in picture.shape[1:])
        crops.append(picture[:, top : top + size, left : left + size])
    return torch.stack(crops)


@torch.no_grad()
def sqnr(model: nn.Module, quantized: nn.Module, batches: Sequence[Tensor]) -> float:
    wanted, found = (torch.cat([each(batch) for batch in batches]) for each in (model, quantized))
    return float(10 * torch.log10(wanted.square().sum() / (wanted - found).square().sum()))


def main(arguments: Sequence[str] | None = None) -> dict[str, tuple[float, ...]]:
    args = options(__doc__, arguments, data=FILES)
    torch.manual_seed(0)
    if args.data is None:
        model = YoloxNano(classes=4, width=4 if args.quick else 8).eval()
        size = 64 if args.quick else 192
        teach = photographs(4 if args.quick else 24, size)
        held_out = Pictures(images=photographs(6 if args.quick else 32, size)[len(teach) // 2 :], boxes=[])
    else:
        model = load_yolox(args.data)
        teach = load_pictures(args.data, "train2017", 8 if args.quick else None).images
        held_out = load_pictures(args.data, "val2017", 8 if args.quick else None)
    batches = [batch.float() for batch in teach[:64].split(8)]
    tests = held_out.batches(8)

    def score(name: str, quantized: nn.Module) -> None:
        if args.data is None:
            result[name] = (sqnr(model, quantized, tests),)
            print(f"{name}: outputs at {result[name][0]:.1f} dB")
        else:
            result[name] = average_precision(detect(quantized, tests), held_out.boxes)
            print(f"{name}: mAP {result[name][0]:.2f}, AP50 {result[name][1]:.2f}", flush=True)

    def say(epoch: int, loss: float) -> None:
        print(f"    after {epoch} epochs: {loss:.1f} from the teacher on held-out pictures", flush=True)

    result: dict[str, tuple[float, ...]] = {}
    if args.data is not None:
        score("float", model)
    score("PTQ int8", fq.convert_fx(calibrated(model, batches, INT8)))
    post = calibrated(model, batches, POW2)
    score("PTQ power-of-two", fq.convert_fx(post, engine="reference"))
    prepared = trained(model, post, teach, epochs=1 if args.quick else 5, each_epoch=say)
    converted = fq.convert_fx(prepared, engine="reference")
    score("QAT power-of-two", converted)
    int8 = sum(row.status == "int8" and row.kind == "conv2d" for row in fq.explain(converted))
    print(f"{int8} of {sum(isinstance(module, nn.Conv2d) for module in model.modules())} convolutions are int8")
    result["int8 convolutions"] = (int8,)
    return result


if __name__ == "__main__":
    main()
