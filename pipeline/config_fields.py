"""Descriptions of the fields of settings, and of what is wrong with their values."""

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from reprlib import Repr
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from a2cap.data.errors import ConfigError, near_name
from a2cap.model.captioners.kinds import KINDS, Kind
from a2cap.model.captioners.model_config import KIND_ERROR

_MOST_PROBLEMS = 20
_LONGEST = 200  # characters of a value that is compared
_SIMILAR = 0.5  # of names of fields, whose sections differ
_REPR = Repr()
_REPR.maxlevel = 2
_REPR.maxstring = _REPR.maxlong = _REPR.maxother = 200


def format_problems(
    errors: Sequence[ErrorDetails],
    *,
    root: type[BaseModel],
    captioner: type[BaseModel],
    kind: str,
) -> tuple[list[str], int]:
    """Format pydantic's errors, one line for each field: `path: what happened: value; what to do`.

    Returns the lines and the number of problems, of which 20 are described at most.
    captioner: the class of the section `model`, after its kind, `kind`, was found.
    """
    foreign = {name: details for details in errors if (name := _foreign_field(details, captioner))}
    lines: dict[str, str] = {}
    if foreign:
        owners = (name for name, model in KINDS.items() if foreign.keys() <= _fields(model))
        lines["model"] = (
            f"model: {kind} has no {', '.join(foreign)} (of {next(owners, 'other kinds')}); "
            f"leave them out, or start from the defaults of {kind} with --set model={kind}"
        )
    plain = [details for details in errors if details not in foreign.values()]
    # to describe a thousand takes seconds
    for details in plain[:_MOST_PROBLEMS]:
        parts, is_choice = _field_parts(details["loc"], root, captioner)
        path = ".".join(parts)
        # a union has an error for each of its members
        if path not in lines or not is_choice:
            line = _format_problem(details, parts, is_choice, root=root, captioner=captioner)
            lines[path if is_choice else line] = line
    more = max(len(plain) - _MOST_PROBLEMS, 0)
    return [*lines.values(), *([f"and {more:,} more"] if more else [])], len(lines) + more


def _fields(kind: Kind) -> set[str]:
    return set(kind.settings.model_fields)


def _foreign_field(details: ErrorDetails, captioner: type[BaseModel]) -> str | None:
    """Return the field of `model` that another kind of captioner has, None for other errors."""
    if details["type"] != "extra_forbidden" or len(details["loc"]) != 2:
        return None
    section, name = details["loc"]
    is_foreign = section == "model" and any(name in _fields(kind) for kind in KINDS.values())
    return str(name) if is_foreign else None


def _field_parts(
    location: Sequence[int | str], root: type[BaseModel], captioner: type[BaseModel]
) -> tuple[list[str], bool]:
    """Return the path of a field without names of members of a union, and if it had such a name."""
    parts: list[str] = []
    model: type[BaseModel] | None = root
    for part in location:
        if model is None and not isinstance(part, int):
            return parts, True
        parts.append(str(part))
        if model is None or isinstance(part, int):
            continue
        field = model.model_fields.get(part)
        if part == "model" and model is root:
            model = captioner
        else:
            model = type(field.default) if field is not None and is_section(field) else None
    return parts, False


def _format_problem(
    details: ErrorDetails,
    parts: Sequence[str],
    is_choice: bool,
    *,
    root: type[BaseModel],
    captioner: type[BaseModel],
) -> str:
    path = ".".join(parts)
    if details["type"] in ("value_error", KIND_ERROR):  # raised by a2, with a remedy
        return f"{path}: {details['ctx']['error']}".removeprefix(": ")
    is_of_model = path.startswith("model.")
    if details["type"] not in ("extra_forbidden", "invalid_key"):  # a key such as null or 3
        message = details["msg"][:1].lower() + details["msg"][1:]
        if is_choice or details["type"] == "literal_error":
            message = "not a valid value"
        at = (".".join(parts[1:]), captioner) if is_of_model else (path, root)
        about = [valid_values(*at), describe_field(*at)]
        near = _nearest_choice(details["input"], *at)
        remedy = f"did you mean {near!r}? Valid" if near else "choose a valid value"
        problem = f"{path}: {message}: {_shown(details['input'])}"
        return f"{problem}; {remedy}: {'; '.join(filter(None, about))}"
    inside, model = (parts[1:-1], captioner) if is_of_model else (parts[:-1], root)
    valid = list(_model_at(inside, model).model_fields)
    names = ", ".join(valid)
    remedy = near_name(parts[-1], valid, otherwise=f"valid names: {names}", similarity=_SIMILAR)
    return f"{path}: unknown field; {remedy}"


def _nearest_choice(value: object, path: str, root: type[BaseModel]) -> str | None:
    """Return the value of a closed list that a text is like, in whatever case."""
    if not isinstance(value, str):
        return None
    model, name = _field_at(path, root)
    schema = model.model_json_schema(by_alias=False)["properties"][name]
    members = schema.get("anyOf", [schema])
    listed = [text for member in members for text in (*member.get("enum", ()), member.get("const"))]
    choices = {text.lower(): text for text in listed if isinstance(text, str)}
    nearest = get_close_matches(value[:_LONGEST].lower(), choices, n=1)
    return choices[nearest[0]] if nearest else None


def describe_field(path: str, root: type[BaseModel]) -> str:
    """Describe the field at a dotted path, or around it: its default and its docstring."""
    model, name = _field_at(path, root)
    field = model.model_fields[name]
    default = "" if is_section(field) else f"default {field.default!r}. "
    return (default + " ".join((field.description or "").split())).removesuffix(".")


def valid_values(path: str, root: type[BaseModel]) -> str:
    """Format the valid values of the field at a dotted path, or around it; "" for a section."""
    model, name = _field_at(path, root)
    if name == "kind":
        return f"{', '.join(KINDS)}, or module:Class of an installed package"
    if is_section(model.model_fields[name]):
        return ""
    return _format_schema(model.model_json_schema(by_alias=False)["properties"][name])


def explain_field(path: str, root: type[BaseModel]) -> list[str]:
    """Describe a field with its valid values, or each field of a section, one line per field.

    Raises ConfigError for an unknown field.
    """
    fields = [field for field, _ in field_paths(root)]
    if path not in fields:
        remedy = near_name(path, fields, otherwise='see "a2 config show"', similarity=_SIMILAR)
        raise ConfigError(f"unknown field: {path!r}; {remedy}")
    inside = [field for field in fields if field.rpartition(".")[0] == path]
    if inside:
        return [f"{field}: {describe_field(field, root)}" for field in inside]
    return [f"{path}: {describe_field(path, root)}", f"valid: {valid_values(path, root)}"]


def field_paths(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield all sections and fields with their dotted paths."""
    for name, field in model.model_fields.items():
        yield f"{prefix}{name}", field
        if is_section(field):
            yield from field_paths(type(field.default), f"{prefix}{name}.")


def section_models(name: str, root: type[BaseModel]) -> list[type[BaseModel]]:
    """Return the model of a section; for `model`, the model of every kind of captioner."""
    if name == "model":
        return [kind.settings for kind in KINDS.values()]
    return [_model_at([name], root)]


def _format_schema(schema: Mapping[str, Any]) -> str:
    """Format the valid values of a JSON schema: `integer, >= 1, <= 1000`."""
    if "anyOf" in schema:
        return " or ".join(map(_format_schema, schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        return ", ".join(map(str, schema.get("enum", [schema.get("const")])))
    if schema["type"] == "array":
        items = schema.get("prefixItems", [schema.get("items")])
        return f"list of {' and of '.join(dict.fromkeys(map(_format_schema, items)))}"
    signs = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
    bounds = [f"{sign} {schema[bound]}" for bound, sign in signs.items() if bound in schema]
    return ", ".join([schema.get("format", schema["type"]), *bounds])


def _model_at(section: Sequence[str], model: type[BaseModel]) -> type[BaseModel]:
    """Return the model of the innermost section of a path."""
    for part in section:
        field = model.model_fields.get(part)
        if field is not None and is_section(field):
            model = type(field.default)  # of the default kind, where a section has several
    return model


def _field_at(path: str, model: type[BaseModel]) -> tuple[type[BaseModel], str]:
    """Return the innermost field on a dotted path, as its model and its name."""
    innermost: tuple[type[BaseModel], str] = (model, path.partition(".")[0])
    for part in path.split("."):
        if part in model.model_fields:
            innermost = model, part
        else:  # an item of a tuple
            break
        model = _model_at([part], model)
    return innermost


def is_section(field: FieldInfo) -> bool:
    """Return True if the field is a section and not a value."""
    return isinstance(field.default, BaseModel)


def _shown(value: object) -> str:
    """Format a value, shortened: aliases of YAML make a short file a huge value."""
    try:
        return _REPR.repr(value)
    except ValueError:  # hexadecimal digits have no limit of their number, decimal ones have
        return "an integer of more than 4,300 digits"
