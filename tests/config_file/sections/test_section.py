"""What all sections share: unknown keys, null, lists as users write them, one choice."""

from __future__ import annotations

import pydantic
import pytest

from fxquant.config_file.sections.section import Choice, Section, Several, Share


class Inner(Section):
    sizes: Several[int] = pydantic.Field(default_factory=list)
    share: Share = 0.5


class Which(Choice):
    first: Inner | None = None
    second: int | None = None


def test_a_key_without_a_value_is_as_good_as_none() -> None:
    assert Inner.model_validate(None) == Inner() == Inner.model_validate({"share": None})


@pytest.mark.parametrize("given", [[1, 2], "1, 2", "1 2", "[1, 2]", (1, 2)])
def test_lists_are_read_as_users_write_them(given: object) -> None:
    assert Inner.model_validate({"sizes": given}).sizes == [1, 2]


def test_a_share_may_be_a_percentage() -> None:
    assert Inner.model_validate({"share": "1%"}).share == 0.01


def test_an_unknown_key_gets_the_closest_name() -> None:
    with pytest.raises(pydantic.ValidationError, match="Closest: 'share'"):
        Inner.model_validate({"shar": 1})


def test_a_choice_is_one_name_with_its_settings() -> None:
    assert Which.model_validate({"first": None}).chosen == ("first", Inner())
    with pytest.raises(pydantic.ValidationError, match="exactly one"):
        Which.model_validate({"first": {}, "second": 1})
