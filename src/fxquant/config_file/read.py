"""A conf.yaml as checked values. Errors name the line, the key and the closest name; nothing of a file is run.

read_conf(path or dict)  ->  Conf, and notes about what has no meaning here
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from fxquant.config.forms import closest
from fxquant.config.read_yaml import Lines, read_yaml
from fxquant.config_file.ignored_keys import notes_of
from fxquant.config_file.sections.conf import Conf
from fxquant.errors import ConfigError


def read_conf(source: str | Path | Mapping[str, object] | Conf) -> tuple[Conf, tuple[str, ...]]:
    """Return the sections of a file (or of a dict of the same form), and notes about what has no meaning here."""
    if isinstance(source, Conf):
        return source, notes_of(source)
    if isinstance(source, Mapping):
        name, content = "the configuration", dict(source)
        lines: Lines = {}
    else:
        name = str(source)
        content, lines = _load(Path(source))
    try:
        conf = Conf.model_validate(content)
    except ValidationError as error:
        raise ConfigError("\n".join(_say(name, lines, each) for each in error.errors())) from None
    return conf, notes_of(conf)


def _load(path: Path) -> tuple[dict[str, object], Lines]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot read {str(path)!r}: {reason}. `fxquant init` writes a file to start from.") from None
    content, lines = read_yaml(text, str(path))
    if not isinstance(content, dict):
        raise ConfigError(f"{path} holds no mapping. It has to have the key 'model'; `fxquant init` writes an example.")
    return content, lines


def _say(name: str, lines: Lines, error: ErrorDetails) -> str:
    """One line about one mistake: file, line, key, what is wrong, what is close."""
    at = tuple(str(part) for part in error["loc"])
    text = str(error["msg"]).removeprefix("Value error, ")
    unknown = re.match(r"the key '(.*?)' is unknown", text)
    where = (*at, unknown.group(1)) if unknown else at
    known = next((where[:end] for end in range(len(where), 0, -1) if where[:end] in lines), ())
    line = f":{lines[known]}" if known else ""
    if error["type"] == "literal_error":
        choices = re.findall(r"'([^']*)'", str(error["ctx"]["expected"]))
        hint = closest(str(error["input"]), choices)
        text = f"is {error['input']!r}; expected one of {', '.join(choices)}.{hint}"
    elif error["type"] == "missing":
        text = "is missing"
    elif text.startswith("Input should be "):
        text = f"is {error['input']!r}; expected {text.removeprefix('Input should be ').partition(',')[0]}"
    path = ".".join(known or at)
    return f"{name}{line}: {path + ': ' if path else ''}{text}"
