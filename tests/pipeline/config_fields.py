"""Fields of the configuration by dotted name."""

from pydantic import BaseModel

from a2cap.pipeline.configuration import Config


def config_fields(model=Config, prefix=""):
    """Map dotted name -> field, of all fields that are not sections."""
    fields = {}
    for name, field in model.model_fields.items():
        if isinstance(field.default, BaseModel):
            # of the default kind, where a section has several
            fields |= config_fields(type(field.default), f"{prefix}{name}.")
        elif name != "kind":
            fields[f"{prefix}{name}"] = field
    return fields


def plain_values(config):
    """Map dotted name -> value as it is in JSON."""
    return _flat(config.model_dump(mode="json"), "")


def _flat(section, prefix):
    values = {}
    for name, value in section.items():
        path = f"{prefix}{name}"
        values |= _flat(value, f"{path}.") if isinstance(value, dict) else {path: value}
    return values
