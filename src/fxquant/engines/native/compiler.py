"""Kernels -> object code -> functions that can be called."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING

from fxquant.engines.native.intrinsics import declaration
from fxquant.engines.native.ir import Function
from fxquant.engines.native.machine import Machine

if TYPE_CHECKING:
    import llvmlite.binding as llvm

_lock = threading.RLock()
# more than level 1 costs seconds and gains nothing; level 0 is several times slower when it runs
_LEVEL = 1


def module_text(functions: Iterable[Function], machine: Machine) -> str:
    """Return the IR of a module with some functions in it."""
    functions = list(functions)
    names = sorted({name for function in functions for name in function.used})
    bits = 8 * machine.width
    attributes = f'"prefer-vector-width"="{bits}" "min-legal-vector-width"="{bits}"'
    return "\n".join(
        (
            f'target triple = "{machine.triple}"',
            *(declaration(name) for name in names),
            *(function.text() for function in functions),
            f"attributes #0 = {{ nounwind {attributes} }}",
        )
    )


def _target(machine: Machine, reloc: str) -> llvm.TargetMachine:
    import llvmlite.binding as llvm

    if machine.triple.startswith("x86_64"):
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
    else:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple(machine.triple)
    model = "default" if reloc == "pic" else "jitdefault"
    return target.create_target_machine(
        cpu=machine.cpu, features=machine.features, opt=_LEVEL, reloc=reloc, codemodel=model, jit=reloc != "pic"
    )


@functools.cache
def _hold_forks() -> None:
    """Let forks wait while LLVM is at work: a child would have what is half done, and nobody who finishes it."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


def object_code(text: str, machine: Machine, reloc: str = "default") -> bytes:
    """Compile a module."""
    import llvmlite.binding as llvm

    _hold_forks()
    with _lock:
        target = _target(machine, reloc)
        module = llvm.parse_assembly(text)
        code: bytes = target.emit_object(module)
    return code


class Library:
    """Object code in memory, ready to be called. It has to live as long as its functions are used."""

    def __init__(self, code: bytes, machine: Machine) -> None:
        import llvmlite.binding as llvm

        _hold_forks()
        with _lock:
            self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _target(machine, "default"))
            self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
            self._engine.finalize_object()

    def address(self, name: str) -> int:
        found: int = self._engine.get_function_address(name)
        assert found, name
        return found
