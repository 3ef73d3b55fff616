"""Runs a region in machine code; calls that it does not take run on oneDNN, by the lowered graph.

Code is made when a size first comes, before it is answered, for as many sizes as the settings say; others run on oneDNN
until one of these was not used for long (`_PATIENCE`), whose place the next one takes. So sizes that are in use give
the same answer to the same input every time, although machine code and oneDNN round some values to different steps,
and a model that sees many sizes does not compile at every call. Code belongs to this process. A region whose tensors
or modes change gets new code; with hooks, for gradients, or under a mode of torch the lowered graph runs. Once its ops
are written down, as a trace, it always does.
"""

from __future__ import annotations

import itertools
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn

from fxquant.engines.known_code import unknown_code
from fxquant.engines.made_from import MadeFrom, made_from
from fxquant.engines.native.again import Again
from fxquant.engines.native.cache import Cache
from fxquant.engines.native.calls import Key, bind, bind_places, key_of, unfit, wants_gradient
from fxquant.engines.native.inputs import batch_of, leaves
from fxquant.engines.native.libraries import Libraries
from fxquant.engines.native.machine import Machine
from fxquant.engines.native.make_program import Refused, Wrong, make_program
from fxquant.engines.native.program import NOWHERE, Program
from fxquant.engines.native.scan import Scans
from fxquant.engines.native.settings import Native
from fxquant.engines.native.shapes import Unread
from fxquant.engines.native.together import Together, takes_rows, together
from fxquant.engines.onednn.kernels import has_nan
from fxquant.engines.onednn.runner import OneDnn
from fxquant.graph import torch_compat
from fxquant.graph.lowering import Runner, has_forward
from fxquant.graph.one_at_a_time import OwnLock
from fxquant.graph.region import Region, lowering_of, region_name
from fxquant.graph.standing import Standing

log = logging.getLogger("fxquant")

_WRITTEN = "torch.jit.trace or torch.export wrote down torch's ops, and it gives what they give since then"
_MANY = "Code is made for a number of sizes, those in use; engine=fxquant.Native(sizes=...) says for how many."
_REFUSED = "for inputs that the graph refuses"
_MOST_DECLINED = 256
_PATIENCE = 1000  # calls of sizes without code, in which a size with code has to come to keep it


class _NotHere(Exception):
    """A call runs on oneDNN: when such calls do, and why."""


class NativeRunner(Runner):
    """The programs of one region, by the sizes that they are for."""

    def __init__(self, lowered: OneDnn, machine: Machine, settings: Native) -> None:
        self.lowered = lowered
        self.machine = machine
        self.settings = settings
        self.refusal = ""  # why no call is native
        self.written = False
        self.told: dict[str, str] = {}  # when calls ran on oneDNN, and why
        self.outside: dict[str, str] = {}  # nodes that Python runs, and why
        self.known: dict[Key, None] = {}  # sizes that have programs, or had them before the model changed
        self._forget()

    def _forget(self) -> None:
        self.made_from: MadeFrom | None = None
        self.placeholders: list[fx.Node] = []
        self.parameters: list[nn.Parameter] = []
        self.programs: dict[Key, Program] = {}
        self.refused: dict[Key, str] = {}
        self.declined: set[tuple[Key, int]] = set()  # sizes and batches that the graph's own checks refuse
        self.again = Again()
        self.used: set[Key] = set()  # sizes that came since there was last looked for room
        self.waited = 0  # calls since then of sizes that have no room
        self.by_row: bool | None = None  # whether all rows of the inputs are treated alike
        cache = self.settings.cache
        self.libraries = Libraries(Cache(None if cache is None else Path(cache)))
        # gets the calls, of a program or of a region on oneDNN; see tables/profile.py
        self.listener: Callable[[Program | Region, list[Any]], None] | None = None
        self._lock = OwnLock()
        self.scan: Scans = Scans(self.machine)  # all steps at once, of the step of a recurrent layer

    def renew(self) -> None:
        """The region has other tensors: its programs are made again from them."""
        self.lowered.renew()
        self.programs.clear()
        self.refused.clear()
        self.declined.clear()
        self.again = Again()
        self.placeholders = []
        self.scan = Scans(self.machine)

    @property
    def failed(self) -> str:  # type: ignore[override]
        return self.refusal or (_WRITTEN if self.written else "")

    @property
    def passed_on(self) -> str:
        """When calls ran on oneDNN, and why."""
        return self.failed or "; ".join(f"{when}: {why}" if why else when for when, why in self.told.items())

    @property
    def unused(self) -> str:  # type: ignore[override]
        return "" if self.known or self.failed else self.passed_on

    @property
    def engine(self) -> str:
        return "onednn" if self.failed else "native"

    @torch_compat.run_by_compilers
    def write_down(self) -> bool:
        """Stay with torch's ops from here on: what is written down, and the model, are then equal bit by bit."""
        if self.failed:
            return self.written
        self.written = True
        warnings.warn(
            "a trace or an exported program holds torch's ops, not machine code. So that they agree bit by bit, the "
            "model runs on engine 'onednn' from here on, more slowly. To keep it as it is, trace a copy.deepcopy of it",
            stacklevel=2,
        )
        return True

    def repeat(self, region: Region, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        if self.written or self.refusal or self.listener is not None or self.lowered.hooks.listen(region):
            return NotImplemented
        if has_forward(region) or not torch_compat.plain_mode() or torch.is_autocast_enabled("cuda"):
            return NotImplemented
        if torch.is_grad_enabled() and self._for_gradients((*args, *kwargs.values())):
            return NotImplemented
        try:
            return self.again.answer(args, kwargs)
        except Unread as error:  # sizes that follow from values
            return self._pass_on(region, args, kwargs, "for some inputs", str(error))

    def __call__(self, region: Region, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        if torch_compat.is_traced():
            self.write_down()
        if self.failed:
            return self._onednn(region, args, kwargs)
        if self.lowered.hooks.listen(region):
            return self._pass_on(region, args, kwargs, "with hooks")
        if has_forward(region):
            return self._pass_on(region, args, kwargs, "with a forward of its own")
        if not torch_compat.plain_mode():
            return self._pass_on(region, args, kwargs, "under tracing, torch.func or a mode of torch")
        if not self.placeholders:
            self.placeholders = [node for node in region.graph.nodes if node.op == "placeholder"]
        inputs = bind(region, self.placeholders, args, kwargs)
        key = key_of(inputs) if inputs is not None else None
        if inputs is None or key is None:
            why = "its arguments are others" if inputs is None else unfit(self.placeholders, inputs)
            return self._pass_on(region, args, kwargs, "for arguments without a batch of tensors on the CPU", why)
        steady = self.made_from is not None and self.made_from.holds()
        if not steady:
            with self._lock:
                self.programs.clear()
                self.refused.clear()
                self.declined.clear()
                self.again = Again()
                self.made_from, self.parameters = made_from(region), list(region.parameters())
        if torch.is_grad_enabled() and self._for_gradients(inputs):
            return self._pass_on(region, args, kwargs, "where gradients are asked for: use torch.no_grad()")
        program = self.programs.get(key)
        self.used.add(key)
        if self.listener is not None and program is not None:
            self.listener(program, inputs)
        try:
            found = self._by_code(region, key, inputs, program)
        except _NotHere as reason:
            return self._pass_on(region, args, kwargs, *reason.args)
        if steady and program is not None and (places := bind_places(region, self.placeholders, args, kwargs)):
            rows = self._together(region, program, inputs)
            programs = [program] if rows is None else self._of_pieces(region, rows)
            if programs is not None:
                self.again.keep(args, kwargs, (programs, rows, places), lambda: self._standing(region))
        return found

    def _for_gradients(self, inputs: Sequence[object]) -> bool:
        return any(map(wants_gradient, (*leaves(inputs), *self.parameters)))

    def _standing(self, region: Region) -> Standing | None:
        """Return all that an answer depends on besides the inputs."""
        filled, standing = lowering_of(region).filled, self.made_from
        assert filled is not None and standing is not None
        one, other = filled.standing(), standing.standing()
        return None if one is None or other is None else one + other

    def _by_code(self, region: Region, key: Key, inputs: list[object], program: Program | None) -> object:
        """Run a call in machine code; raise _NotHere if it is not for it."""
        program = program or self._obtain(region, key, inputs)
        if program.signed and any(map(has_nan, leaves(inputs))):
            raise _NotHere("where a signed tensor is not a number")
        batch = batch_of(inputs)
        rows = self._together(region, program, inputs)
        if rows is not None and (programs := self._of_pieces(region, rows)) is not None:
            return rows.apart(self._by_rows(programs, rows))
        if not program.pays(batch):
            raise _NotHere("for some batches")
        return self._finish(inputs, program)

    def _together(self, region: Region, program: Program, inputs: list[object]) -> Together | None:
        """Return the rows of a call that are taken together, if they are."""
        batch = batch_of(inputs)
        if batch == 1 or not (program.sizes.single or program.whole) or (not program.whole and program.is_short(batch)):
            return None
        return together(inputs, batch, program.whole) if self._takes_rows(region, program) else None

    def _of_pieces(self, region: Region, rows: Together) -> list[Program] | None:
        keys = [key_of(piece.inputs) for piece in rows.pieces]
        if any(key is None for key in keys):
            return None
        return [self._obtain(region, key, each.inputs) for key, each in zip(keys, rows.pieces, strict=True) if key]

    def _by_rows(self, programs: Sequence[Program], rows: Together) -> list[object]:
        memory = rows.memory(itertools.chain(*programs[0].results.values()))
        made = []
        for piece, program in zip(rows.pieces, programs, strict=True):
            into = {name: piece.part_of(tensor) for name, tensor in memory.items()}
            made.append(self._finish(piece.inputs, program, into))
        return made

    def _takes_rows(self, region: Region, program: Program) -> bool:
        if self.by_row is None:
            self.by_row = takes_rows(region, program.graph) if program.by_row is None else program.by_row
        return self.by_row

    def _finish(self, inputs: list[object], program: Program, into: Mapping[str, Tensor] = NOWHERE) -> object:
        try:
            return program.answer(inputs, batch_of(inputs), into)
        except Unread as error:  # sizes that follow from values
            raise _NotHere("for some inputs", str(error)) from error

    def _obtain(self, region: Region, key: Key, inputs: list[object]) -> Program:
        """Return the program of a size; it is made, unless there are enough of other sizes."""
        with self._lock:
            if (program := self.programs.get(key)) is not None:
                self.used.add(key)
                return program
            if key not in self.refused and unknown_code(region):
                self.refused[key] = unknown_code(region)
            if key in self.refused:
                raise _NotHere("for inputs of some sizes", self.refused[key])
            if (key, batch_of(inputs)) in self.declined:
                raise _NotHere(_REFUSED)
            if key not in self.known and not self._has_room():
                raise _NotHere("for inputs of further sizes", _MANY)
            try:
                made = make_program(region, key, inputs, self.machine, self.libraries)
            except Refused as error:  # inside a model, such calls run the user's code
                if len(self.declined) >= _MOST_DECLINED:
                    self.declined.clear()
                self.declined.add((key, batch_of(inputs)))
                raise _NotHere(_REFUSED) from error
            except (Unread, Wrong) as error:
                self.refused[key] = str(error)
                level = logging.INFO if isinstance(error, Unread) else logging.WARNING
                self._tell(region, "for inputs of some sizes", str(error), level)
                raise _NotHere("for inputs of some sizes", str(error)) from error
            self.programs[key], self.outside, self.known[key] = made.program, made.outside, None
            return made.program

    def _has_room(self) -> bool:
        """Tell whether one more size may have code; from time to time, sizes that did not come any more give theirs."""
        held = {*self.known, *self.refused}
        if len(held) < self.settings.sizes:
            return True
        self.waited += 1
        if self.waited < _PATIENCE:
            return False
        for key in held - self.used:
            self.known.pop(key, None)
            self.refused.pop(key, None)
            self.programs.pop(key, None)
        self.waited, self.used = 0, set()
        self.again = Again()  # it answers calls without that they are seen here
        return len({*self.known, *self.refused}) < self.settings.sizes

    def _pass_on(
        self, region: Region, args: tuple[object, ...], kwargs: dict[str, object], when: str, why: str = ""
    ) -> object:
        if when not in self.told:
            self._tell(region, when, why)
        return self._onednn(region, args, kwargs)

    def _onednn(self, region: Region, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """Run the lowered graph."""
        if self.listener is not None:
            self.listener(region, [args, kwargs])
        return self.lowered(region, args, kwargs)

    def _tell(self, region: Region, when: str, why: str, level: int = logging.INFO) -> None:
        self.told[when] = why
        log.log(level, "%r runs on onednn, not native, %s. %s", region_name(region), when, why)

    def __getstate__(self) -> dict[str, object]:
        # by what is known, a copy computes, and is explained, in the same way
        kept = ("lowered", "machine", "settings", "refusal", "written", "known", "outside", "told")
        return {name: self.__dict__[name] for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, known=dict(state["known"]), told=dict(state["told"]))
        self._forget()
