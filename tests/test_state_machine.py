"""Random lives of a converted model, on an engine and on the reference, side by side: they give the same all along."""

from __future__ import annotations

import contextlib
import copy
import io
import pickle
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

import fxquant as fq
from fxquant.engines.table import as_engine

PER_LIFE = 8  # of a profile's examples: a life has several steps
STEPS = 12
QUICK = ("onednn",)  # runtimes take seconds to be made again


class Net(nn.Module):
    """Convolutions with what kernels take in, and float parts with state of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.act = nn.ReLU()
        self.side = nn.Conv2d(8, 8, 1)
        self.pool = nn.MaxPool2d(2)
        self.gate = nn.SiLU()
        self.slope = nn.PReLU(8)
        self.drop = nn.Dropout(0.0)
        self.head = nn.Linear(8 * 16, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.act(self.conv(x))
        x = self.pool(x + self.side(x))
        x = self.drop(self.slope(self.gate(x)))
        return self.head(x.reshape(x.shape[0], -1)), x


def made(engine: str) -> tuple[nn.Module, nn.Module]:
    """(reference, on the engine), converted for the engine's target."""
    torch.manual_seed(0)
    model, x = Net().eval(), torch.randn(2, 3, 8, 8)
    mapping = fq.get_default_qconfig_mapping("x86")
    pair = []
    for each in ("reference", engine):
        prepared = fq.prepare_fx(model, mapping, (x,), target=as_engine(engine).target())
        prepared(x)
        pair.append(fq.convert_fx(prepared, engine=each))
    return pair[0], pair[1]


def double(module: nn.Module, args: Any, output: Any) -> Any:
    return output * 2 if isinstance(output, Tensor) else tuple(each * 2 for each in output)


def halve(module: nn.Module, args: Any) -> Any:
    return (args[0] / 2, *args[1:])


def write(module: nn.Module, args: Any, output: Any) -> None:
    for each in output if isinstance(output, tuple) else (output,):
        each.add_(0.5)


KINDS = {
    "forward": lambda m: m.register_forward_hook(double),
    "pre": lambda m: m.register_forward_pre_hook(halve),
    "write": lambda m: m.register_forward_hook(write),
    "always": lambda m: m.register_forward_hook(double, always_call=True),
    "kwargs": lambda m: m.register_forward_hook(lambda m, a, k, o: double(m, a, o), with_kwargs=True),
}
PATHS = ["", "act", "pool", "gate", "slope", "drop", "conv", "head"]
MODES: dict[str, Any] = {
    "plain": contextlib.nullcontext,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}


class Life(RuleBasedStateMachine):
    engine = "onednn"
    first: tuple[nn.Module, nn.Module]

    def __init__(self) -> None:
        super().__init__()
        self.pair = tuple(copy.deepcopy(each) for each in self.first)
        self.handles: list[Any] = []
        self.mode = "no_grad"
        self.batch, self.size, self.last, self.dtype = 2, 8, False, torch.float32

    @rule(kind=st.sampled_from(sorted(KINDS)), path=st.sampled_from(PATHS))
    def hook(self, kind: str, path: str) -> None:
        self.handles.append([KINDS[kind](each.get_submodule(path)) for each in self.pair])

    @rule()
    def hook_everything(self) -> None:
        if not any(len(handles) == 1 for handles in self.handles):
            self.handles.append([register_module_forward_hook(lambda m, a, o: None)])

    @rule(which=st.integers(0, 9))
    def unhook(self, which: int) -> None:
        if self.handles:
            for handle in self.handles.pop(which % len(self.handles)):
                handle.remove()

    @rule(which=st.integers(0, 99), amount=st.sampled_from([0.5, 1.5]))
    def change(self, which: int, amount: float) -> None:
        names = sorted(name for name, _ in (*self.pair[0].named_buffers(), *self.pair[0].named_parameters()))
        name = names[which % len(names)]
        for each in self.pair:
            tensor = dict((*each.named_buffers(), *each.named_parameters()))[name]
            with torch.inference_mode(tensor.is_inference()), torch.no_grad():
                if tensor.is_floating_point():
                    tensor.mul_(amount)
                elif "zero_point" not in name:
                    tensor.copy_(tensor.flip(0))

    @rule(training=st.booleans(), path=st.sampled_from(["", "drop", "slope"]))
    def train(self, training: bool, path: str) -> None:
        for each in self.pair:
            each.get_submodule(path).train(training)

    @rule(dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]))
    def move(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        for each in self.pair:
            each.to(dtype)

    @rule(last=st.booleans())
    def move_format(self, last: bool) -> None:
        for each in self.pair:
            each.to(memory_format=torch.channels_last if last else torch.contiguous_format)  # type: ignore[call-overload]

    @rule(batch=st.integers(1, 4), last=st.booleans())
    def feed(self, batch: int, last: bool) -> None:
        self.batch, self.last = batch, last

    @rule(mode=st.sampled_from(sorted(MODES)))
    def enter(self, mode: str) -> None:
        self.mode = mode

    @rule(assign=st.booleans(), from_start=st.booleans())
    def load(self, assign: bool, from_start: bool) -> None:
        for each, start in zip(self.pair, self.first, strict=True):
            state = (start if from_start else each).state_dict()
            each.load_state_dict({k: v.clone() if torch.is_tensor(v) else v for k, v in state.items()}, assign=assign)

    @rule(how=st.sampled_from(["deepcopy", "pickle"]))
    def clone(self, how: str) -> None:
        hooked = [handles for handles in self.handles if len(handles) > 1]
        for handles in hooked:
            self.handles.remove(handles)
            for handle in handles:
                handle.remove()
        if how == "deepcopy":
            self.pair = tuple(copy.deepcopy(each) for each in self.pair)
        else:
            self.pair = tuple(pickle.load(io.BytesIO(pickle.dumps(each))) for each in self.pair)

    @rule()
    def swap(self) -> None:
        for each in self.pair:
            slope = each.get_submodule("slope")
            slope.weight = nn.Parameter(slope.weight.detach().clone() * 1.1)

    @invariant()
    def gives_the_same(self) -> None:
        torch.manual_seed(1)
        x = torch.randn(self.batch, 3, self.size, self.size).to(self.dtype)
        x = x.to(memory_format=torch.channels_last) if self.last else x
        for _ in range(3):
            with MODES[self.mode]():
                expected, actual = (each(x.clone()) for each in self.pair)
            for a, b in zip(expected, actual, strict=True):
                assert a.shape == b.shape and a.stride() == b.stride()
                assert a.dtype == b.dtype
                scale = float(a.detach().float().abs().max()) + 1e-6
                assert torch.allclose(a.detach().float(), b.detach().float(), atol=0.06 * scale, rtol=0.05)

    def teardown(self) -> None:
        for handles in self.handles:
            for handle in handles:
                handle.remove()


@pytest.mark.parametrize("engine", ["onednn", "native", "onnxruntime", "openvino"])
def test_lives_of_a_model(engine: str) -> None:
    pytest.importorskip({"onednn": "torch", "native": "llvmlite"}.get(engine, engine))
    life = type("Life", (Life,), {"engine": engine, "first": made(engine)})
    lives = max(settings().max_examples // PER_LIFE // (1 if engine in QUICK else 5), 1)
    run_state_machine_as_test(life, settings=settings(max_examples=lives, stateful_step_count=STEPS))
