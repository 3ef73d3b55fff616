"""Random lives of a converted model, on an engine and on the reference, side by side: they give the same all along."""

from __future__ import annotations

import contextlib
import copy
import io
import os
import pickle
import signal
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils import parametrize

import fxquant as fq
from forge.once import share_runtimes
from fxquant.engines.table import as_engine

PER_LIFE = 8  # of a profile's examples: a life has several steps
STEPS = 12
RUNTIMES = ("onnxruntime", "openvino")


class Net(nn.Module):
    """Convolutions with what kernels take in, a container, and float parts with state of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU())
        self.side = nn.Conv2d(8, 8, 1)
        self.pool = nn.MaxPool2d(2)
        self.gate = nn.SiLU()
        self.slope = nn.PReLU(8)
        self.drop = nn.Dropout(0.0)
        self.head = nn.Linear(8 * 16, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.stem(x)
        x = self.pool(x + self.side(x))
        x = self.drop(self.slope(self.gate(x)))
        return self.head(x.flatten(1)), x


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


def double_after(module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
    return double(module, args, output)


def halve_before(module: nn.Module, args: Any, kwargs: Any) -> Any:
    return halve(module, args), kwargs


def shift_loaded(module: nn.Module, state: dict[str, Any], prefix: str, *rest: Any) -> None:
    for name, value in state.items():
        if (
            name.startswith(f"{prefix}weight")
            and name.rpartition(".")[0] == prefix.rstrip(".")
            and value.is_floating_point()
        ):
            state[name] = value * 1.5


class Doubled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2

    def right_inverse(self, x: Tensor) -> Tensor:
        return x


class Shifted:
    """A forward that is put on a module; it can be copied."""

    def __init__(self, forward: Callable[..., Any]) -> None:
        self.forward = forward

    def __call__(self, *args: Any) -> Any:
        return self.forward(*args) + 0.25


class Removal:
    """A handle for what is taken back by a call."""

    def __init__(self, remove: Callable[[], object]) -> None:
        self.remove = remove


def parametrized(module: nn.Module) -> Removal:
    parametrize.register_parametrization(module, "weight", Doubled())
    return Removal(lambda: parametrize.remove_parametrizations(module, "weight"))


def normed(module: nn.Module) -> Removal:
    nn.utils.weight_norm(module)
    return Removal(lambda: nn.utils.remove_weight_norm(module))


KINDS: dict[str, Callable[[nn.Module], Any]] = {
    "forward": lambda m: m.register_forward_hook(double),
    "forward first": lambda m: m.register_forward_hook(double, prepend=True),
    "forward always": lambda m: m.register_forward_hook(double, always_call=True),
    "forward kwargs": lambda m: m.register_forward_hook(double_after, with_kwargs=True),
    "forward kwargs always": lambda m: m.register_forward_hook(double_after, with_kwargs=True, always_call=True),
    "pre": lambda m: m.register_forward_pre_hook(halve),
    "pre kwargs": lambda m: m.register_forward_pre_hook(halve_before, with_kwargs=True),
    "write": lambda m: m.register_forward_hook(write),
    "backward": lambda m: m.register_full_backward_hook(lambda m, inner, outer: None),
    "backward pre": lambda m: m.register_full_backward_pre_hook(lambda m, outer: None),
    "state": lambda m: m.register_state_dict_post_hook(lambda m, state, prefix, meta: None),
    "loading": lambda m: m.register_load_state_dict_pre_hook(shift_loaded),
}
REPARAMETRIZED: dict[str, Callable[[nn.Module], Any]] = {"parametrization": parametrized, "weight_norm": normed}
PATHS = ["", "stem", "stem.0", "stem.1", "side", "pool", "gate", "slope", "drop", "head"]
MODES: dict[str, Any] = {
    "plain": contextlib.nullcontext,
    "no_grad": torch.no_grad,
    "grad off": lambda: torch.set_grad_enabled(False),
    "grad on": lambda: torch.set_grad_enabled(True),
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x,
    "channels_last": lambda x: x.to(memory_format=torch.channels_last),
    "transposed": lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
    "sliced": lambda x: torch.stack((x, x), -1).flatten(3)[..., ::2],
    "expanded": lambda x: x[:1].expand_as(x),
    "permuted batch": lambda x: x.permute(1, 0, 2, 3).contiguous().permute(1, 0, 2, 3),
}


class Life(RuleBasedStateMachine):
    engine = "onednn"
    first: tuple[nn.Module, nn.Module]

    def __init__(self) -> None:
        super().__init__()
        self.pair = tuple(copy.deepcopy(each) for each in self.first)
        self.handles: list[Any] = []
        self.mode, self.resting = "no_grad", False
        self.batch, self.layout, self.wants_grad, self.dtype = 2, "contiguous", False, torch.float32

    @rule(kind=st.sampled_from(sorted(KINDS)), path=st.sampled_from(PATHS))
    def hook(self, kind: str, path: str) -> None:
        self.handles.append([KINDS[kind](each.get_submodule(path)) for each in self.pair])

    @rule(kind=st.sampled_from(sorted(REPARAMETRIZED)))
    def reparametrize(self, kind: str) -> None:
        if not self.is_reparametrized():
            self.handles.append([REPARAMETRIZED[kind](each.get_submodule("slope")) for each in self.pair])

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

    @rule(batch=st.integers(0, 4), layout=st.sampled_from(sorted(LAYOUTS)), wants_grad=st.booleans())
    def feed(self, batch: int, layout: str, wants_grad: bool) -> None:
        self.batch, self.layout, self.wants_grad = batch, layout, wants_grad

    @rule(value=st.sampled_from([float("nan"), float("inf"), -float("inf"), 1e38]))
    def poison(self, value: float) -> None:
        """What such inputs give is the engines' own; what comes after is not."""
        for each in self.pair:
            with MODES[self.mode]():
                each(torch.full((self.batch, 3, 8, 8), value).to(self.dtype))

    @rule()
    def raise_inside(self) -> None:
        def fail(*args: Any) -> None:
            raise ZeroDivisionError

        for each in self.pair:
            handle = each.get_submodule("pool").register_forward_hook(fail)
            with pytest.raises(ZeroDivisionError), MODES[self.mode]():
                each(torch.zeros(1, 3, 8, 8).to(self.dtype))
            handle.remove()

    @rule()
    def fork(self) -> None:
        """Another process goes on with what this one has."""
        if self.engine in RUNTIMES:
            return  # their threads are not in a forked process; benchmarks/soak.py gives it a model of its own
        child = os.fork()
        if child == 0:
            signal.alarm(120)
            try:
                self.gives_the_same()
                os._exit(0)
            except BaseException:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0

    @rule(resting=st.booleans())
    def rest(self, resting: bool) -> None:
        """Several things happen before the next call."""
        self.resting = resting

    @rule(mode=st.sampled_from(sorted(MODES)))
    def enter(self, mode: str) -> None:
        self.mode = mode

    @rule(assign=st.booleans(), from_start=st.booleans())
    def load(self, assign: bool, from_start: bool) -> None:
        if self.is_reparametrized():
            return  # its keys are others
        for each, start in zip(self.pair, self.first, strict=True):
            state = (start if from_start else each).state_dict()
            each.load_state_dict({k: v.clone() if torch.is_tensor(v) else v for k, v in state.items()}, assign=assign)

    @rule(how=st.sampled_from(["deepcopy", "pickle"]))
    def clone(self, how: str) -> None:
        hooked = [handles for handles in self.handles if len(handles) > 1]  # code of this file cannot be pickled
        for handles in hooked:
            self.handles.remove(handles)
            for handle in handles:
                handle.remove()
        if how == "deepcopy":
            self.pair = tuple(copy.deepcopy(each) for each in self.pair)
        else:
            self.pair = tuple(pickle.load(io.BytesIO(pickle.dumps(each))) for each in self.pair)

    @rule(path=st.sampled_from(["stem.1", "pool", "gate", "slope"]), own=st.booleans())
    def override(self, path: str, own: bool) -> None:
        """Put a forward on a module, or take it off."""
        for each in self.pair:
            module = each.get_submodule(path)
            module.__dict__.pop("forward", None)
            if own:
                module.__dict__["forward"] = Shifted(type(module).forward.__get__(module))

    @rule()
    def swap(self) -> None:
        for each in self.pair if not self.is_reparametrized() else ():
            slope = each.get_submodule("slope")
            slope.weight = nn.Parameter(slope.weight.detach().clone() * 1.1)

    def is_reparametrized(self) -> bool:
        return any(isinstance(handle, Removal) for handles in self.handles for handle in handles)

    @invariant()
    def goes_on(self) -> None:
        if not self.resting:
            self.gives_the_same()

    def gives_the_same(self) -> None:
        torch.manual_seed(1)
        x = LAYOUTS[self.layout](torch.randn(self.batch, 3, 8, 8).to(self.dtype))
        for _ in range(3):
            found = []
            for each in self.pair:
                given = x.detach().clone().requires_grad_(self.wants_grad)
                assert given.stride() == x.stride() or self.layout in ("expanded", "sliced")
                with MODES[self.mode]():
                    found.append(each(given if self.layout not in ("expanded", "sliced") else x))
            for a, b in zip(*found, strict=True):
                assert a.shape == b.shape and (a.stride() == b.stride() or not self.batch)
                assert a.requires_grad == b.requires_grad
                assert a.dtype == b.dtype or self.mode == "autocast"
                if self.batch:
                    scale = float(a.detach().float().abs().max()) + 1e-6
                    assert torch.allclose(a.detach().float(), b.detach().float(), atol=0.06 * scale, rtol=0.05)

    def teardown(self) -> None:
        try:
            if self.resting:
                self.gives_the_same()
        finally:
            for handles in self.handles:
                for handle in handles:
                    handle.remove()


@pytest.mark.broad
@pytest.mark.parametrize("engine", ["onednn", "native", "onnxruntime", "openvino"])
def test_lives_of_a_model(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip({"onednn": "torch", "native": "llvmlite"}.get(engine, engine))
    if engine in RUNTIMES:
        share_runtimes(monkeypatch.setattr)
    life = type("Life", (Life,), {"engine": engine, "first": made(engine)})
    lives = settings().max_examples // PER_LIFE
    run_state_machine_as_test(life, settings=settings(max_examples=lives, stateful_step_count=STEPS))
