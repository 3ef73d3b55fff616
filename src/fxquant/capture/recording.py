"""The example run of a model: what it computes in each mode, what its submodules are called with, what it changes.

A run is made when it is first asked for, and once: all rungs of the ladder compare with the same outputs. The model is
run as a clone that is left as it was, on copies of the inputs, from a fixed seed. What the code of the model reaches is
followed once, too (`Ground`), for this model and for its parts.
"""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager
from dataclasses import dataclass

from torch import nn

from fxquant.capture.piecewise.calls import Calls, record_calls
from fxquant.capture.reasons import Cause
from fxquant.capture.run_untraced import call, difference, evaluating, run, seed, untouched
from fxquant.capture.source_lines import locate, reason
from fxquant.capture.untouched.other_random import has_drawn, random_state
from fxquant.capture.untouched.snapshot import Ground, Snapshot
from fxquant.errors import CaptureError
from fxquant.graph.clone_tree import clone_tree


@dataclass(frozen=True, slots=True)
class Reference:
    """What a graph is compared with. `evaluated`: the model takes the example inputs in eval mode only.

    `drew`: its code drew random numbers from what is not torch's.
    """

    outputs: object
    evaluated: bool
    drew: bool


class Recording:
    """The runs of a model on one set of example inputs; see above."""

    def __init__(
        self,
        model: nn.Module,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        ground: Ground | None = None,
        reference: Reference | None = None,
    ) -> None:
        self.model, self.args, self.kwargs = model, args, kwargs
        self.ground = Ground(model) if ground is None else ground
        self._known = reference  # from a run that was made before
        self._outputs: dict[bool, object] = {} if reference is None else {model.training: reference.outputs}
        self._failure: CaptureError | None = None
        self._drew = False  # in a run that failed, too

    def run(self, model: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """Run this model, a copy or a part of it, or a graph of one, and leave it as it was."""
        return run(model, args, kwargs, self.ground)

    def untouched(self, model: nn.Module) -> AbstractContextManager[Snapshot]:
        """Put back at the end what the code of such a model may have written to."""
        return untouched(model, self.ground)

    @functools.cached_property
    def clone(self) -> nn.Module:
        """The model, to be run: whoever does leaves it as it was."""
        return clone_tree(self.model)

    def reference(self) -> Reference:
        """Return the outputs of the model in its own mode; raise if it fails, or if a call depends on those before."""
        if self._failure is not None:
            raise self._failure
        try:
            return self._reference
        except CaptureError as error:
            self._failure = error
            raise

    @functools.cached_property
    def _reference(self) -> Reference:
        if self._known is not None:
            return self._known
        model = clone_tree(self.model)
        try:
            return self._run_twice(model)
        except CaptureError:
            raise
        except Exception as error:
            where, _ = locate(error, model)
            at = f". At {where}." if where else "."
            raise CaptureError(
                f"the model itself fails on the example inputs: {reason(error)}{at} Pass others."
            ) from error

    def _run_twice(self, model: nn.Module) -> Reference:
        """Run a clone of the model; once more if that changed attributes, since calls have to be independent."""
        evaluated = False
        with self.untouched(model) as before:
            generators = random_state()
            try:
                theirs = call(model, self.args, self.kwargs)
            except Exception:
                # a batch of one cannot go through batch norm in train mode, yet is a fair example
                evaluated = any(module.training for module in model.modules())
                if not evaluated:
                    raise
                before.restore()
                model.eval()
                theirs = call(model, self.args, self.kwargs)
            finally:
                self._drew = has_drawn(generators)
            kept = before.changed()
            if kept or before.changed_outside():
                before.restore_buffers()  # a graph can hold these
                seed(model)
                if found := difference(call(model, self.args, self.kwargs), theirs):
                    path, names = next(iter(kept.items()), ("", ()))
                    why = Cause.DEPENDS_ON_GLOBALS.because(found=found)
                    if names:
                        why = Cause.DEPENDS_ON_STATE.because(name=names[0], found=found)
                    raise CaptureError(f"{why.text}. A graph cannot hold that.", why=why, path=path)
        if evaluated or not self.model.training:
            self._outputs[False] = theirs
        return Reference(theirs, evaluated, self._drew)

    @property
    def draws(self) -> bool:
        """Whether the code draws random numbers from what is not torch's: a graph would hold them as they were."""
        try:
            return self.reference().drew
        except CaptureError:
            return self._drew

    def evaluated_outputs(self) -> object:
        """Return the outputs of the model in eval mode."""
        if False not in self._outputs:
            with evaluating(self.clone):
                self._outputs[False] = self.run(self.clone, self.args, self.kwargs)
        return self._outputs[False]

    def watched(self, tree: nn.Module) -> Calls:
        """Run a clone of the model, with an eye on its submodules and weights."""
        calls = record_calls(tree, self.args, self.kwargs, self.ground)
        self._outputs.update(calls.outputs)
        return calls
