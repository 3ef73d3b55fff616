"""The sections of a conf.yaml as pydantic models: every field, its values and defaults."""
