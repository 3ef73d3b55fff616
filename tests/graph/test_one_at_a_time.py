"""Captures in threads: torch.fx changes `nn.Module` itself while it traces."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import torch
from torch import Tensor, nn

from fxquant.capture import capture

X = torch.randn(2, 4)


class Slow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(0.02)  # so that traces without a lock overlap
        return self.fc(x)


def test_captures_in_threads_leave_torch_as_it_was() -> None:
    own = nn.Module.__call__, nn.Module.__getattr__
    models = [Slow().eval() for _ in range(3)]
    try:
        with ThreadPoolExecutor(3) as pool:
            found = list(pool.map(lambda model: capture(model, (X,)), models))
        assert (nn.Module.__call__, nn.Module.__getattr__) == own
    finally:
        nn.Module.__call__, nn.Module.__getattr__ = own  # type: ignore[method-assign]
    assert all(torch.equal(region(X), model(X)) for region, model in zip(found, models, strict=True))


def test_models_of_other_threads_run_while_one_is_traced() -> None:
    other = nn.Linear(4, 4).eval()
    answers: SimpleQueue[Tensor] = SimpleQueue()  # a list would be put back as it was

    class Net(Slow):
        def forward(self, x: Tensor) -> Tensor:
            thread = threading.Thread(target=lambda: answers.put(other(X)))
            thread.start()
            thread.join()
            return super().forward(x)

    capture(Net().eval(), (X,), method="symbolic")
    assert torch.equal(answers.get(timeout=1), other(X))
