"""Why code is not part of a graph, as values: what is said about it, and what the user can do."""

from __future__ import annotations

from enum import Enum

from fxquant.errors import Reason

_IF_PARTS = "nothing, if the parts are quantized; else"
_READS = "call the module instead of reading its weight"
_RETURN = "return the value instead of keeping it on the module"


class Cause(Enum):
    """A kind of reason: its text, with places for the particulars, and its hint."""

    text: str
    hint: str

    MODE = (
        "{cls} branches on self.training, and a graph holds one branch: {found}",
        f"{_IF_PARTS} put the branch into a function marked with fxquant.wrap",
    )
    CONTROL_FLOW = (
        "symbolically traced variables cannot be used as inputs to control flow",
        "put the branch in a function marked with fxquant.wrap, or write it with torch.where",
    )
    ITERATED = (
        "a traced variable cannot be iterated over, since its length is not known",
        "loop over a fixed number, or mark the function with the loop with fxquant.wrap",
    )
    LENGTH = (
        "the length of a traced variable is not known",
        "use x.shape[0], or mark the function with fxquant.wrap",
    )
    ONE_BATCH = (
        "as one graph it {limit}",
        "loop over features rather than over the batch, or give examples of the size to be used",
    )
    ALL_INPUTS = (
        "as one graph it {limit}",
        f"{_IF_PARTS} take the branch on what is given out of forward",
    )
    NOT_REACHED = (
        "not reached by the example inputs: int8 if calibration reaches it",
        "give example inputs, and calibration data, that take this branch",
    )
    STATE = ("a call changes its attribute {name!r}, which a graph cannot hold", _RETURN)
    DEPENDS_ON_STATE = (
        "a call changes the attribute {name!r} and the next call depends on it: {found}",
        _RETURN,
    )
    DEPENDS_ON_GLOBALS = (
        "a call changes what a global, a class or a closure holds and the next call depends on it: {found}",
        "pass it as an input, and return what it becomes",
    )
    WEIGHTS_OUTSIDE = ("its weights are used outside of it, by {reader}", _READS)
    ONLY_READ = ("its weight is used by {reader}, which does not call it", _READS)
    ALSO_PASSED = (
        "its weight is also passed to {function}, in float",
        "call the module, or write all calls on the weight in the same way",
    )
    NO_FORM = (
        "stock module without an int8 form",
        "replace it by a module of fxquant.modules, or write it with linear layers",
    )
    CONFIGURED = ("the custom config says that it is non-traceable", "take it out of the custom config")
    SCRIPTED = ("a TorchScript module is one call", "use the module that it was made of")
    WRAPPED = ("wrapped: its body is left as written", "give example inputs that reach all of the body")
    AUTOCAST = (
        "it is called under torch.autocast, which the model switches on, with inputs of half precision",
        "leave autocast out for inference, or give the module x.float()",
    )
    OTHER_CALLS = (
        "one graph does not cover all of its calls: {found}",
        "give the calls the same kind of arguments, or use one module for each",
    )
    CONSTANT = (
        "values are written into a tensor that does not come from an input, such as torch.zeros(4)",
        "make it from an input (x.new_zeros(4), torch.zeros_like), or join the parts with torch.stack or torch.cat",
    )
    DRAWN = (
        "random numbers are drawn that do not follow from an input, such as torch.rand(4)",
        "draw them like an input (torch.rand_like), or pass them as one",
    )
    DRAWN_OUTSIDE = (
        "random numbers are drawn by Python's random or by numpy",
        "draw them with torch, like an input (torch.rand_like), or pass them as one",
    )
    OBJECT = (
        "a graph cannot hold a {cls}",
        f"{_IF_PARTS} return tensors in tuples, lists or dicts",
    )
    ARGUMENT = (
        "argument {name!r} is a {cls}, which is neither a tensor nor a plain value nor a container of them",
        "pass its tensors in tuples, lists or dicts",
    )

    def __init__(self, text: str, hint: str) -> None:
        self.text, self.hint = text, hint

    def because(self, **particulars: object) -> Reason:
        """Fill in the particulars."""
        return Reason(self.text.format(**particulars), self.hint)
