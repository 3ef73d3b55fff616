"""The chip that models are prepared for, set once for the process."""

from __future__ import annotations

from enum import Enum

from fxquant.errors import ConfigError
from fxquant.targets import set_march as set_target
from fxquant.targets.march import march as target


class March(str, Enum):
    """Generations of the chip. All of them compute on symmetric int8 and int16 without zero points."""

    BERNOULLI2 = "bernoulli2"
    BAYES = "bayes"
    BAYES_E = "bayes-e"
    META = "meta"
    NASH = "nash"
    NASH_E = "nash-e"
    NASH_M = "nash-m"
    NASH_P = "nash-p"
    NASH_B = "nash-b"


def set_march(march: March | str) -> None:
    """Set the chip. `prepare` needs it."""
    known = [str(member.value) for member in March]
    if march not in known:
        raise ConfigError(f"set_march({march!r}): unknown. Known: {', '.join(known)}.")
    set_target("bpu")


def get_march() -> str:
    """Return the name of the target that was set; an error if none was."""
    found = target()
    if found is None:
        raise ConfigError("no march is set. Call set_march(March.NASH), or the march of your chip, first.")
    return found.name
