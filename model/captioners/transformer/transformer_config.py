"""Settings of the A2 Transformer captioner."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from a2cap.model.captioners.captioner_settings import LayeredSettings, Recipe


class TransformerConfig(LayeredSettings):
    """Sizes and options of the Transformer captioner; the defaults are the paper's."""

    # the defaults of `train`
    recipes: ClassVar[Mapping[str, Recipe]] = {"authors": {}, "modern": {}}

    # left out where settings are written: keys and captioners older than the other kinds stay valid
    kind: Annotated[Literal["transformer"], Field(exclude=True)] = "transformer"
    """Kind of captioner; the other fields of this section depend on it."""

    norm: Literal["post", "pre"] = "post"
    """Layer norm after each block, as in the paper, or before it, as in ImageCaptioning.pytorch."""

    box_geometry: Literal["none", "linear", "relative"] = "none"
    """Geometry of the regions: linear adds a projection of the normalised box to its region;
    relative adds two layers of it, and its encoder sees how each pair of boxes lies and can count;
    none, as in the paper, leaves the model unable to tell left from right."""

    @property
    def needs(self) -> Mapping[str, tuple[str, str]]:
        """Return the need of a `box_geometry`."""
        geometry = self.box_geometry
        if geometry == "none":
            return {}
        return {"boxes": (f"box_geometry={geometry}", "box_geometry=none")}
