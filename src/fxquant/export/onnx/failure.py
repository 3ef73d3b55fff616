"""An export that fails: one paragraph for the user, torch's own pages at the debug level of the log.

what failed (op, node), where it is in the user's code, why, and what can be exported instead
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
import warnings
from collections.abc import Iterator

import torch
from torch import nn

from fxquant.errors import FxQuantError
from fxquant.graph.region import Region, regions

log = logging.getLogger("fxquant")

_NODE = re.compile(r"translating node %?(\w+)(?:.*?target=([\w.]+))?")
_UNKNOWN = re.compile(r"(Found|input type) <class '(?:[^']*\.)?(\w+)'>")
_FRAME = re.compile(r'File "([^"<]+)", line (\d+)')


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """While it lasts, what torch prints, logs and warns of goes to the log, at its debug level."""
    printed = io.StringIO()

    def keep(record: logging.LogRecord) -> bool:
        printed.write(f"{record.getMessage()}\n")
        return False

    loggers = [logging.getLogger(name) for name in ("torch", *logging.root.manager.loggerDict) if name[:5] == "torch"]
    handlers = {handler for logger in loggers for handler in logger.handlers}
    for sink in (*loggers, *handlers):
        sink.addFilter(keep)
    try:
        with (
            warnings.catch_warnings(record=True) as caught,
            contextlib.redirect_stdout(printed),
            contextlib.redirect_stderr(printed),
        ):
            warnings.simplefilter("always")
            yield
    finally:
        for sink in (*loggers, *handlers):
            sink.removeFilter(keep)
        text = printed.getvalue() + "".join(f"{warning.message}\n" for warning in caught)
        if text.strip():
            log.debug("torch's exporter: %s", text)


def failure(caller: str, error: Exception, model: nn.Module, hint: str = "") -> FxQuantError:
    """Return the error to raise from one of torch's."""
    chain = list(_causes(error))
    first = chain[-1]
    node = next((found for each in chain if (found := _NODE.search(str(each)))), None)
    op = (node[2] or node[1]).removeprefix("torch.ops.") if node is not None else ""
    what = f"torch.onnx cannot translate {op}" if op else "torch cannot export the model"
    place = _place(op, model) or next((at for each in chain if (at := _user_line(each))), "")
    where = f", at {place}" if place else ""
    why = next((line.strip() for line in str(first).splitlines() if line.strip()), type(first).__name__)
    if "transformers.cache_utils" in why:
        why = "The model returns its cache, which is no tensor"
        hint = f"{hint}Set config.use_cache = False of the float model before it is quantized. "
    if unknown := _UNKNOWN.search(why):
        does = "returns" if unknown[1] == "Found" else "takes"
        why = f"The model {does} an object of class {unknown[2]}, in which torch.export finds no tensors"
        register = f"torch.export.register_dataclass({unknown[2]})"
        hint = f"{hint}Register the class before you quantize ({register}, if it is one), or use a tuple or a dict. "
    log.debug("%s: %s", caller, error, exc_info=error)
    return FxQuantError(f"{caller}: {what}{where}. {why[:300].rstrip('.')}. {hint}{_instead(model, caller)}")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _place(op: str, model: nn.Module) -> str:
    """Return the line of the user's code that calls an op, as the graphs of the regions know it.

    `eigvals` is made of `eig`, `svd` of `_linalg_svd`.
    """
    base = (op.split(".")[1] if "." in op else op).lstrip("_")
    nodes = [node for _, region in regions(model) for node in region.graph.nodes if node.op.startswith("call")]
    names = {node: str(getattr(node.target, "__name__", node.target)) for node in nodes}
    found = [node for node in nodes if base and names[node] == base]
    found = found or [node for node in nodes if base and names[node].startswith(base)]
    found = found or [node for node in nodes if base and names[node].endswith(f"_{base}")]  # torch.special's
    return next((str(node.meta["where"]) for node in found if node.meta.get("where")), "")


def _user_line(error: BaseException) -> str:
    """Return the line that torch names in its message, or the last one of the user's own on the stack."""
    found = _line_in(str(error))
    if found or error.__traceback__ is None:
        return found
    packages = (torch.__path__[0], __file__.rpartition("export")[0])
    frames = [trace for trace in _frames(error) if not trace[0].startswith((*packages, "<"))]
    return f"{frames[-1][0]}:{frames[-1][1]}" if frames else ""


def _frames(error: BaseException) -> Iterator[tuple[str, int]]:
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame.f_code.co_filename, trace.tb_lineno
        trace = trace.tb_next


def _line_in(text: str) -> str:
    lines = [f"{file}:{line}" for file, line in _FRAME.findall(text) if not file.startswith(torch.__path__[0])]
    return lines[-1] if lines else ""


def _instead(model: nn.Module, caller: str) -> str:
    """Return what can be exported: a region by itself, or a part of the float model that is quantized by itself."""
    if caller != "export_onnx":
        return "engine='onednn' runs the model as it is."
    inner = {path: _size(region) for path, region in regions(model) if path}
    if inner and not isinstance(model, Region):
        return f"Export the part that computes: fxquant.export_onnx(model.{max(inner, key=lambda p: inner[p])}, ...)."
    children = {name: _size(child) for name, child in model.named_children() if "." not in name}
    if any(children.values()):
        name = max(children, key=lambda each: children[each])
        return (
            f"Quantize and export the part that computes by itself: fxquant.quantize(float_model.{name}, data), then "
            "fxquant.export_onnx of that."
        )
    return "Leave this op out of forward, or run the model with engine='onednn'."


def _size(module: nn.Module) -> int:
    return sum(tensor.numel() for tensor in (*module.parameters(), *module.buffers()))
