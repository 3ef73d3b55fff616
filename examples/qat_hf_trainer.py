"""Train a prepared model with the Trainer of Hugging Face transformers: `python examples/qat_hf_trainer.py`.

The Trainer wants a model that returns its loss, so the loss is part of the model, and is quantized along with it.
"""

from __future__ import annotations

import argparse
import tempfile

import torch
from _digits import accuracy, digits, network
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset
from transformers import Trainer, TrainingArguments

import fxquant as fq


class WithLoss(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixel_values: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.model(pixel_values)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Named(Dataset[dict[str, Tensor]]):
    """Examples as the Trainer collates them: by the names of the model's arguments."""

    def __init__(self, data: TensorDataset) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        images, labels = self.data[index]
        return {"pixel_values": images, "labels": labels}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()

    torch.manual_seed(0)
    train, test = digits()
    images, labels = train.tensors
    mapping = fq.get_default_qat_qconfig_mapping("x86")
    prepared = fq.prepare_qat_fx(WithLoss(network()).train(), mapping, (images[:2], labels[:2]))
    with tempfile.TemporaryDirectory() as directory:
        settings = TrainingArguments(
            output_dir=directory,
            num_train_epochs=args.epochs,
            per_device_train_batch_size=100,
            learning_rate=1e-2,
            report_to=[],
            disable_tqdm=True,
            save_strategy="no",
            use_cpu=True,
        )
        Trainer(model=prepared, args=settings, train_dataset=Named(train)).train()
    prepared.eval()
    converted = fq.convert_fx(prepared)

    def classifier(model: nn.Module) -> nn.Module:
        def forward(x: Tensor) -> Tensor:
            return model(x, torch.zeros(len(x), dtype=torch.long))["logits"]

        module = nn.Module()
        module.forward = forward  # type: ignore[method-assign]
        return module

    scores = [accuracy(classifier(model), test) for model in (prepared, converted)]
    print(f"transformers: fake-quantized {scores[0]:.3f}, int8 {scores[1]:.3f}")


if __name__ == "__main__":
    main()
