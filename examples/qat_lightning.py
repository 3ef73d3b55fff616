"""Train a prepared model with Lightning: `python examples/qat_lightning.py`.

A model from `prepare_qat_fx` is a module like any other, so the LightningModule just holds it.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from _digits import accuracy, digits, network
from torch import Tensor, nn
from torch.utils.data import DataLoader

import fxquant as fq

try:
    import lightning
except ImportError:
    import pytorch_lightning as lightning


class Classifier(lightning.LightningModule):  # type: ignore[misc]
    def __init__(self, prepared: nn.Module, steps: int) -> None:
        super().__init__()
        self.model = prepared
        self.schedule = fq.FreezeSchedule(prepared, observers=int(0.8 * steps))

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        images, labels = batch
        loss = nn.functional.cross_entropy(self.model(images), labels)
        self.log("loss", loss)
        return loss

    def on_train_batch_end(self, *args: Any) -> None:
        self.schedule.step()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(fq.parameter_groups(self.model, 1e-2, 1e-2, 1e-4))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()

    lightning.seed_everything(0)
    train, test = digits()
    loader = DataLoader(train, batch_size=100, shuffle=True)
    prepared = fq.prepare_qat_fx(network().train(), fq.get_default_qat_qconfig_mapping("x86"), (train.tensors[0][:2],))
    trainer = lightning.Trainer(
        max_epochs=args.epochs, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.fit(Classifier(prepared, args.epochs * len(loader)), loader)
    prepared.eval()
    converted = fq.convert_fx(prepared)
    print(f"lightning: fake-quantized {accuracy(prepared, test):.3f}, int8 {accuracy(converted, test):.3f}")


if __name__ == "__main__":
    main()
