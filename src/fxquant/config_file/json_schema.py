"""The JSON schema of a conf.yaml, for editors that complete and check as one types."""

from __future__ import annotations

from fxquant.config_file.sections.conf import Conf


def json_schema() -> dict[str, object]:
    """Return the schema; give it to an editor, or put `# yaml-language-server: $schema=...` on top of a file."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Conf.model_json_schema()}
