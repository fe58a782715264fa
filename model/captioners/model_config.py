"""Settings of a captioner of any kind; those of a kind are beside its class."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import BeforeValidator, SerializeAsAny, ValidationError, ValidationInfo
from pydantic_core import InitErrorDetails, PydanticCustomError

from a2cap.model.captioners.captioner_settings import CaptionerSettings
from a2cap.model.captioners.kinds import find_settings
from a2cap.model.errors import PlugInError
from a2cap.model.plug_ins import MAY_IMPORT

KIND_ERROR = "captioner_kind"
"""Type of the error of an unknown, untrusted or wrong kind."""


def _of_its_kind(settings: object, info: ValidationInfo) -> object:
    """Validate settings by the class of their kind, a transformer where they name none."""
    if not isinstance(settings, Mapping):
        return settings
    kind = settings.get("kind", "transformer")
    try:
        name, model = find_settings(str(kind), may_import=info.context == MAY_IMPORT)
    except PlugInError as error:
        problem = PydanticCustomError(KIND_ERROR, "{error}", {"error": str(error)})
        details = InitErrorDetails(type=problem, loc=("kind",), input=kind)
        raise ValidationError.from_exception_data("model", [details]) from error
    return model.model_validate({**settings, "kind": name})


ModelConfig = Annotated[SerializeAsAny[CaptionerSettings], BeforeValidator(_of_its_kind)]
"""Settings of a captioner of any kind."""
