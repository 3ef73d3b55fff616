"""Objects by name, as the command line gives them: `package.module:function`. Files are never looked up so."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fxquant.config.forms import closest
from fxquant.errors import ConfigError


def find_named(name: str, option: str) -> Callable[..., Any]:
    """Import a module, from the current directory as well, and take what the name says from it."""
    module_name, colon, attribute = name.partition(":")
    if not colon or not module_name or not attribute:
        raise ConfigError(f"{option} {name!r}: expected package.module:function.")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{option} {name!r}: there is no module {error.name!r}, here or installed.") from error
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"{option} {name!r}: {module_name} has no {part!r}.{closest(part, dir(found))}")
        found = getattr(found, part)
    if not callable(found):
        raise ConfigError(f"{option} {name!r} is no function ({type(found).__name__}). Name a function.")
    function: Callable[..., Any] = found
    return function
