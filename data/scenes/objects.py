"""Objects and clutter of generated scenes: categories, colours, sizes and textures.

Captions describe objects. The categories and colours of clutter are different and never mentioned.
"""

from dataclasses import dataclass, replace

import numpy as np

from a2cap.data.scenes.silhouettes import Silhouette, silhouette_of

OBJECT_CATEGORIES = (
    *("ball", "box", "star", "ring", "cross", "cup"),
    *("house", "tree", "fish", "kite", "heart", "moon"),
)
PLURALS = {category: f"{category}s" for category in OBJECT_CATEGORIES}
PLURALS |= {"box": "boxes", "cross": "crosses", "fish": "fish"}

# No pink or brown: people also call them tints of red and shades of orange.
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
"""Colour word -> red, green, blue in 0-255."""

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
"""Category of clutter -> its possible colours."""

MUTED = {
    "grey": (138, 138, 140),
    "brown": (142, 118, 96),
    "olive": (122, 130, 92),
    "slate": (116, 132, 146),
    "pale": (212, 206, 194),
}
"""Colour of clutter -> red, green, blue in 0-255: near the backgrounds, far from COLOURS."""

SIZES = {"small": (0.15, 0.18), "medium": (0.23, 0.27), "large": (0.34, 0.39)}
"""Bounds of the longer side as a share of the image; the gaps make the words unambiguous."""

TEXTURES = ("plain", "striped", "dotted")

MAX_TILT = 9.0
"""Maximum tilt in degrees; a cross remains a cross and a house upright."""


@dataclass(frozen=True)
class SceneObject:
    """An object of a scene, or a piece of its clutter.

    category, colour, size, texture: words of OBJECT_CATEGORIES, COLOURS, SIZES and TEXTURES; of
    clutter words of CLUTTER, MUTED, SIZES and "plain".
    box: x1 y1 x2 y2 in pixels, tight around the silhouette including hidden parts, without shadow.
    tilt: clockwise degrees.
    """

    category: str
    colour: str
    size: str
    texture: str
    box: tuple[float, float, float, float]
    tilt: float = 0.0

    @property
    def centre(self) -> tuple[float, float]:
        """Centre of the box, x y in pixels."""
        x1, y1, x2, y2 = self.box
        return (x1 + x2) / 2, (y1 + y2) / 2

    @property
    def area(self) -> float:
        """Area of the box in square pixels."""
        x1, y1, x2, y2 = self.box
        return (x2 - x1) * (y2 - y1)

    @property
    def is_clutter(self) -> bool:
        """True if captions never mention it."""
        return self.category in CLUTTER

    def scaled(self, factor: float) -> "SceneObject":
        """Scale the box to an image `factor` times as large, rounded to hundredths of a pixel."""
        x1, y1, x2, y2 = (round(factor * corner, 2) for corner in self.box)
        return replace(self, box=(x1, y1, x2, y2))


def extent(category: str, tilt: float) -> tuple[float, float]:
    """Return width and height of the box of a tilted silhouette, the longer side 1."""
    least, greatest = _tilted(category, tilt).bounds()
    width, height = (greatest - least) / (greatest - least).max()
    return float(width), float(height)


def outline(obj: SceneObject) -> Silhouette:
    """Return the silhouette of an object in pixels, filling its box exactly."""
    silhouette = _tilted(obj.category, obj.tilt)
    least, greatest = silhouette.bounds()
    corner, far_corner = np.array(obj.box[:2]), np.array(obj.box[2:])
    # per axis, because the sides of the box are rounded
    scale = (far_corner - corner) / (greatest - least)
    return silhouette.transform(lambda contour: corner + (contour - least) * scale)


def _tilted(category: str, tilt: float) -> Silhouette:
    angle = np.deg2rad(tilt)
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    return silhouette_of(category).transform(lambda contour: contour @ turn)
