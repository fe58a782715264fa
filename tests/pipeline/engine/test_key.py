"""Fields of a key: all of a section that can change a result."""

from pydantic import BaseModel, Field

from a2cap.pipeline.engine.key import key_fields


class Settings(BaseModel):
    lr: float = Field(1.0, json_schema_extra={"unit": "1"})
    seed: int = 0
    every: int = Field(10, json_schema_extra={"no_effect": True})


def test_fields_are_in_the_key_unless_they_are_excluded_or_without_effect():
    assert key_fields(Settings(every=3)) == {"lr": 1.0, "seed": 0}
    assert key_fields(Settings(), exclude={"seed"}) == {"lr": 1.0}
