"""Whether a module of the user's is, or can become, the stock module that a call asks for."""

from __future__ import annotations

from torch import nn

from fxquant.capture.canonical.stock import Stock, Tensors
from fxquant.ops.table import OpTable


def is_norm(module: object) -> bool:
    cls = module if isinstance(module, type) else type(module)
    return issubclass(cls, (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm))


def owns(module: nn.Module, tensors: Tensors) -> bool:
    """Tell whether the call's tensors are the module's own."""
    return all(tensor is None or getattr(module, name, None) is tensor for name, tensor in tensors.items())


def stock_class(stock: Stock, source: nn.Module, ops: OpTable) -> type[nn.Module]:
    """Return the stock class that a user's module derives from.

    A BatchNorm1d may well be called on 2 or 3 dimensions.
    """
    stocks = [c for c in type(source).__mro__ if c.__module__.startswith("torch.nn") and ops.of(c) is ops.of(stock.cls)]
    return next((c for c in stocks if c in ops.of(stock.cls).modules), stock.cls)  # type: ignore[union-attr]


def follows_mode(stock: Stock, module: nn.Module, tensors: Tensors) -> bool:
    """Tell whether the flag in the call is what a stock norm would use in the module's mode."""
    return stock.training is (module.training or tensors["running_mean"] is None)


def same_stock(one: Stock, other: Stock, tensors: Tensors, theirs: Tensors) -> bool:
    return (
        one.cls is other.cls
        and dict(one.settings) == dict(other.settings)
        and one.transposed == other.transposed
        and all(tensors[name] is theirs.get(name) for name in tensors)
    )


def has_settings(module: nn.Module, stock: Stock) -> bool:
    for name, value in stock.settings.items():
        if name == "bias":
            if (module._parameters.get("bias") is not None) is not value:
                return False
        elif name not in stock.own and getattr(module, name) != value:
            return False
    return getattr(module, "padding_mode", "zeros") == "zeros"
