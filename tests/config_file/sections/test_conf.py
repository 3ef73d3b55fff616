"""The JSON schema for editors."""

from __future__ import annotations

import json

from fxquant.config_file import json_schema


def test_the_json_schema_knows_every_section() -> None:
    schema = json_schema()
    json.dumps(schema)
    assert {"model", "quantization", "evaluation", "tuning"} <= schema["properties"].keys()
    assert "Normalize" in schema["$defs"]["Transforms"]["properties"]
