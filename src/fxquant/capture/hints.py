"""What a user can do about a module that was left in float, from the reason."""

from __future__ import annotations

_HINTS = (
    (
        "branches on self.training",
        "nothing, if the parts are quantized; else put the branch into a function marked with fxquant.wrap",
    ),
    ("control flow", "put the branch in a function marked with fxquant.wrap, or write it with torch.where"),
    ("cannot be iterated", "loop over a fixed number, or mark the function with the loop with fxquant.wrap"),
    ("'len' is not supported", "use x.shape[0], or mark the function with fxquant.wrap"),
    ("for a batch of", "loop over features rather than over the batch, or give examples of the size to be used"),
    ("not reached", "give example inputs, and calibration data, that take this branch"),
    ("changes its attribute", "return the value instead of keeping it on the module"),
    ("used outside of it", "call the module instead of reading its weight"),
    ("is also passed to", "call the module, or write all calls on the weight in the same way"),
    ("is used by", "call the module instead of reading its weight"),
    ("without an int8 form", "replace it by a module of fxquant.modules, or write it with linear layers"),
    ("non-traceable", "take it out of the custom config"),
    ("wrapped", "give example inputs that reach all of the body"),
    ("does not cover all of its calls", "give the calls the same kind of arguments, or use one module for each"),
    ("a graph cannot hold", "nothing, if the parts are quantized; else return tensors in tuples, lists or dicts"),
    ("neither a tensor nor a plain value", "pass its tensors in tuples, lists or dicts"),
)


def hint(reason: str) -> str:
    """One sentence, or nothing."""
    return next(
        (text for words, text in _HINTS if words in reason), "mark the function that it names with fxquant.wrap"
    )
