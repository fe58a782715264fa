"""The things of generated scenes and the clutter beside them: kinds, colours, sizes and textures.

Things are what captions speak of. Clutter has kinds and colours of its own, which no caption names.
"""

from dataclasses import dataclass, replace

import numpy as np

from a2cap.data.scenes.silhouettes import Silhouette, silhouette_of

PLURALS = {
    "ball": "balls",
    "box": "boxes",
    "star": "stars",
    "ring": "rings",
    "cross": "crosses",
    "cup": "cups",
    "house": "houses",
    "tree": "trees",
    "fish": "fish",
    "kite": "kites",
    "heart": "hearts",
    "moon": "moons",
}
KINDS = tuple(PLURALS)

# Pink and brown are left out: their words blur into tints of red and shades of orange.
COLOURS = {
    "red": (214, 40, 44),
    "orange": (245, 134, 24),
    "yellow": (252, 214, 40),
    "green": (38, 156, 74),
    "blue": (36, 98, 216),
    "purple": (126, 58, 176),
    "white": (250, 250, 248),
    "black": (40, 40, 44),
}
"""Colour word to red, green, blue in 0-255."""

CLUTTER = {
    "leaf": ("olive", "brown"),
    "cloud": ("pale", "grey"),
    "puddle": ("grey", "slate"),
    "stone": ("grey", "brown"),
    "bush": ("olive", "slate"),
    "sign": ("brown", "pale"),
    "mushroom": ("pale", "brown"),
    "fence": ("brown", "grey"),
}
"""Kind of clutter to the words of the colours that it comes in."""

MUTED = {
    "grey": (138, 138, 140),
    "brown": (142, 118, 96),
    "olive": (122, 130, 92),
    "slate": (116, 132, 146),
    "pale": (212, 206, 194),
}
"""Colour word of clutter to red, green, blue in 0-255: near the grounds, far from COLOURS."""

SIZES = {"small": (0.15, 0.18), "medium": (0.23, 0.27), "large": (0.34, 0.39)}
"""Bounds of a thing's longer side as a share of the image's; the gaps keep the words apart."""

TEXTURES = ("plain", "striped", "dotted")

MAX_TILT = 9.0
"""Degrees that a thing may lean; a cross stays a cross and a house stands."""


@dataclass(frozen=True)
class Thing:
    """One thing of a scene, or a piece of its clutter, complete for drawing and for describing.

    kind, colour, size, texture: words out of KINDS, COLOURS, SIZES and TEXTURES; of clutter out of
    CLUTTER, MUTED, SIZES and "plain".
    box: x1 y1 x2 y2 in pixels of its image, tight around the silhouette, hidden parts included;
    its shadow is not part of it.
    tilt: degrees, clockwise as one sees it.
    """

    kind: str
    colour: str
    size: str
    texture: str
    box: tuple[float, float, float, float]
    tilt: float = 0.0

    @property
    def centre(self) -> tuple[float, float]:
        """Middle of the box, x y in pixels."""
        x1, y1, x2, y2 = self.box
        return (x1 + x2) / 2, (y1 + y2) / 2

    @property
    def area(self) -> float:
        """Area of the box in square pixels."""
        x1, y1, x2, y2 = self.box
        return (x2 - x1) * (y2 - y1)

    @property
    def is_clutter(self) -> bool:
        """Whether captions never speak of it."""
        return self.kind in CLUTTER

    def scaled(self, factor: float) -> "Thing":
        """The same in an image that is `factor` times as large, in hundredths of a pixel."""
        x1, y1, x2, y2 = (round(factor * place, 2) for place in self.box)
        return replace(self, box=(x1, y1, x2, y2))


def extent(kind: str, tilt: float) -> tuple[float, float]:
    """Width and height of the leaning silhouette's box, the longer one 1."""
    least, greatest = _leaning(kind, tilt).bounds()
    width, height = (greatest - least) / (greatest - least).max()
    return float(width), float(height)


def outline(thing: Thing) -> Silhouette:
    """The thing's silhouette in pixels of its image, filling `thing.box` exactly."""
    silhouette = _leaning(thing.kind, thing.tilt)
    least, greatest = silhouette.bounds()
    corner, far_corner = np.array(thing.box[:2]), np.array(thing.box[2:])
    scale = (far_corner - corner) / (greatest - least)
    return silhouette.mapped(lambda contour: corner + (contour - least) * scale)


def _leaning(kind: str, tilt: float) -> Silhouette:
    angle = np.deg2rad(tilt)
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    return silhouette_of(kind).mapped(lambda contour: contour @ turn)
