"""The part of a stage's key that comes from its configuration."""

from collections.abc import Collection
from typing import Any

from pydantic import BaseModel


def key_fields(section: BaseModel, *, exclude: Collection[str] = ()) -> dict[str, Any]:
    """Return a section's fields as JSON values for `MadeFrom.fields`.

    Fields declared with `json_schema_extra={"no_effect": True}` are left out: they cannot change a
    result.
    """
    without_effect = {
        name
        for name, field in type(section).model_fields.items()
        if isinstance(field.json_schema_extra, dict) and field.json_schema_extra.get("no_effect")
    }
    return section.model_dump(mode="json", exclude=without_effect | set(exclude))
