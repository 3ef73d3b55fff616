"""What all sections have in common: unknown keys are errors with the closest name, and null counts as {}."""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from typing_extensions import Self, TypeAliasType

from fxquant.config.forms import closest

T = TypeVar("T")


class Section(BaseModel):
    """A mapping of a file with known keys. A key without a value is as good as none."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, value: object) -> object:
        if value is None:
            return {}
        if not isinstance(value, dict):
            return value
        for key in value:
            if key not in cls.model_fields:
                hint = closest(str(key), cls.model_fields) or f" Known: {', '.join(cls.model_fields)}."
                raise ValueError(f"the key {key!r} is unknown.{hint}")
        return cls._without_null(value)

    @classmethod
    def _without_null(cls, value: dict[str, object]) -> dict[str, object]:
        return {key: each for key, each in value.items() if each is not None}


class Choice(Section):
    """One of several names, with its settings: a dataset, a metric. `name:` alone has no settings."""

    @classmethod
    def _without_null(cls, value: dict[str, object]) -> dict[str, object]:
        return {key: {} if each is None else each for key, each in value.items()}

    @model_validator(mode="after")
    def _only_one(self) -> Self:
        found = sorted(self.model_fields_set)
        if len(found) != 1:
            raise ValueError(f"give exactly one of {', '.join(type(self).model_fields)}, not {found or 'nothing'}")
        return self

    @property
    def chosen(self) -> tuple[str, Any]:
        """The name, and its settings."""
        (name,) = self.model_fields_set
        return name, getattr(self, name)


def as_list(value: object) -> object:
    """Return a list as users write it: `[a, b]`, `"a, b"`, `"a b"`, or a single value."""
    if value is None:
        return []
    if isinstance(value, str):
        return [word for word in re.split(r"[,\s]+", value.strip("[]() ")) if word]
    return value if isinstance(value, (list, tuple)) else [value]


def as_number(value: object) -> object:
    """Return a number, or a share such as '1%'."""
    if isinstance(value, str) and value.strip().endswith("%"):
        return float(value.strip()[:-1]) / 100
    return value


def no_switch(value: object) -> object:
    """Refuse yes and no, which Python takes for 1 and 0."""
    if isinstance(value, bool):
        raise ValueError(f"is {str(value).lower()}; expected a whole number")
    return value


Several = TypeAliasType("Several", Annotated[list[T], BeforeValidator(as_list)], type_params=(T,))
Count = Annotated[int, BeforeValidator(no_switch), Field(ge=1)]
Share = Annotated[float, BeforeValidator(as_number)]
