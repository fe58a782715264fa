"""OpenCV drawings of scenes: a muted ground, soft shadows, and antialiased things.

Grounds are grey-ish and of middle lightness, so that a colour word can only mean a thing, and
black and white things both stand out. A thing is drawn in shades of its one colour. Clutter lies
flat on the ground, behind all things: in muted colours, without an outline or a shadow.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor

import cv2
import numpy as np
from numpy.typing import NDArray

from a2cap.data.scenes.objects import COLOURS, MUTED, Thing, outline
from a2cap.data.scenes.silhouettes import Contour, Silhouette

AnnotatedImage = NDArray[np.uint8]
"""(H, W, 3) uint8, blue, green, red."""

TINTS = {
    "sand": (196, 184, 164),
    "stone": (174, 174, 178),
    "mist": (164, 182, 194),
    "sage": (168, 184, 164),
    "mauve": (184, 170, 186),
    "clay": (190, 170, 160),
}
"""Ground tint to red, green, blue in 0-255."""

PATTERNS = ("gradient", "noise", "checker", "waves")

_BLACK, _WHITE = (0, 0, 0), (255, 255, 255)

_OVERSAMPLING = 2
_SUBPIXEL_BITS = 4


@dataclass(frozen=True)
class Ground:
    """What lies behind the things: a pattern out of PATTERNS in a tint out of TINTS.

    seed: chooses the pattern's angle, cells and grain.
    """

    pattern: str
    tint: str
    seed: int


def draw_image(
    things: Sequence[Thing], ground: Ground, *, side: int, clutter: Sequence[Thing] = ()
) -> AnnotatedImage:
    """The things on their ground and clutter, the first at the back; returns (side, side, 3)."""
    canvas = _ground_canvas(ground, side=side)
    for piece in clutter:
        _paint(canvas, piece, silhouette_mask(piece, side=side))
    masks = [silhouette_mask(thing, side=side) for thing in things]
    _cast_shadows(canvas, masks)
    for thing, mask in zip(things, masks, strict=True):
        _paint(canvas, thing, mask)
    return np.clip(np.rint(canvas), 0, 255).astype(np.uint8)


def silhouette_mask(thing: Thing, *, side: int) -> NDArray[np.float32]:
    """How much of each pixel the thing covers: (side, side), in [0, 1]."""
    coverage = np.zeros((side, side), np.float32)
    frame = _Frame.around(thing, side=side)
    coverage[frame.rows, frame.columns] = frame.shrunk(_filled(frame, outline(thing))) / 255
    return coverage


def footprint(thing: Thing, *, cells: int) -> NDArray[np.uint8]:
    """Where a thing of an image of side 1 lies, on a grid: (cells, cells), 0 or 1."""
    grid = np.zeros((cells, cells), np.uint8)
    for part in outline(thing).parts:
        scaled = [(contour * cells - 0.5) * 2**_SUBPIXEL_BITS for contour in part]
        contours = [np.asarray(np.rint(contour), np.int32) for contour in scaled]
        cv2.fillPoly(grid, contours, (1,), cv2.LINE_8, _SUBPIXEL_BITS)
    return grid


@dataclass(frozen=True)
class _Frame:
    """The whole pixels around a thing, which is drawn in them oversampled."""

    left: int
    top: int
    right: int
    bottom: int

    @classmethod
    def around(cls, thing: Thing, *, side: int) -> "_Frame":
        x1, y1, x2, y2 = thing.box
        return cls(
            left=max(floor(x1), 0),
            top=max(floor(y1), 0),
            right=min(ceil(x2), side),
            bottom=min(ceil(y2), side),
        )

    @property
    def rows(self) -> slice:
        return slice(self.top, self.bottom)

    @property
    def columns(self) -> slice:
        return slice(self.left, self.right)

    @property
    def oversampled_shape(self) -> tuple[int, int]:
        height, width = self.bottom - self.top, self.right - self.left
        return height * _OVERSAMPLING, width * _OVERSAMPLING

    def fixed_point(self, contour: Contour) -> NDArray[np.int32]:
        """The contour for cv2.fillPoly, whose pixel centres lie at whole coordinates."""
        inside = (contour - (self.left, self.top)) * _OVERSAMPLING - 0.5
        return np.asarray(np.rint(inside * 2**_SUBPIXEL_BITS), np.int32)

    def shrunk(self, oversampled: NDArray[np.uint8]) -> NDArray[np.float32]:
        size = (self.right - self.left, self.bottom - self.top)
        return cv2.resize(oversampled, size, interpolation=cv2.INTER_AREA).astype(np.float32)


def _filled(frame: _Frame, silhouette: Silhouette) -> NDArray[np.uint8]:
    image = np.zeros(frame.oversampled_shape, np.uint8)
    for part in silhouette.parts:
        contours = [frame.fixed_point(contour) for contour in part]
        cv2.fillPoly(image, contours, (255,), cv2.LINE_AA, _SUBPIXEL_BITS)
    return image


def _paint(canvas: NDArray[np.float32], thing: Thing, mask: NDArray[np.float32]) -> None:
    frame = _Frame.around(thing, side=canvas.shape[0])
    silhouette = outline(thing)
    surface = _surface(thing, frame)
    dark = _bgr(_mixed(_rgb(thing), *_line_tone(thing)))
    for detail in silhouette.details:
        cv2.fillPoly(surface, [frame.fixed_point(detail)], dark, cv2.LINE_AA, _SUBPIXEL_BITS)
    if not thing.is_clutter:
        brush = np.ones((_OVERSAMPLING + 1, _OVERSAMPLING + 1), np.uint8)
        filled = _filled(frame, silhouette)
        inner = cv2.erode(filled, brush, borderType=cv2.BORDER_CONSTANT, borderValue=0)
        surface[inner < 128] = dark
    behind = canvas[frame.rows, frame.columns]
    behind += (frame.shrunk(surface) - behind) * mask[frame.rows, frame.columns, None]


def _surface(thing: Thing, frame: _Frame) -> AnnotatedImage:
    """Colour, texture and a light from above, oversampled: (H, W, 3)."""
    height, width = frame.oversampled_shape
    colour = _rgb(thing)
    base = np.array(_bgr(colour), np.float32)
    second = np.array(_bgr(_mixed(colour, *_texture_tone(thing.colour))), np.float32)
    share = _texture_share(thing, height=height, width=width)
    light = np.linspace(1.06, 0.9, height, dtype=np.float32)[:, None, None]
    surface = (base + share[..., None] * (second - base)) * light
    return np.asarray(np.clip(surface, 0, 255), np.uint8)


def _texture_share(thing: Thing, *, height: int, width: int) -> NDArray[np.float32]:
    """Where the texture's second tone shows: (height, width), 0 or 1."""
    if thing.texture == "plain":
        return np.zeros((height, width), np.float32)
    y, x = np.ogrid[:height, :width]
    period = max(6.0 * _OVERSAMPLING, max(height, width) / 5.5)
    if thing.texture == "striped":
        return (((x + y) / period / 2**0.5) % 1 < 0.4).astype(np.float32)
    u, v = (x / period) % 1 - 0.5, (y / period) % 1 - 0.5
    return (u * u + v * v < 0.3**2).astype(np.float32)


def _ground_canvas(ground: Ground, *, side: int) -> NDArray[np.float32]:
    rng = np.random.default_rng(ground.seed)
    tint = TINTS[ground.tint]
    dark = np.array(_bgr(_mixed(tint, _BLACK, 0.16)), np.float32)
    light = np.array(_bgr(_mixed(tint, _WHITE, 0.2)), np.float32)
    share = _ground_share(ground.pattern, rng, side=side)
    return dark + share[..., None] * (light - dark)


def _ground_share(pattern: str, rng: np.random.Generator, *, side: int) -> NDArray[np.float32]:
    """Share of the lighter shade: (side, side), about 0 to 1."""
    angle = rng.uniform(0, 2 * np.pi)
    y, x = np.mgrid[:side, :side] / side
    along = (x - 0.5) * np.cos(angle) + (y - 0.5) * np.sin(angle)
    share = 0.5 + 0.8 * along
    if pattern == "noise":
        clouds = cv2.resize(rng.uniform(0, 1, (9, 9)), (side, side), interpolation=cv2.INTER_CUBIC)
        share = clouds + rng.normal(0, 0.1, (side, side))
    elif pattern == "checker":
        cells = rng.integers(6, 10)
        share = 0.3 + 0.28 * ((x * cells // 1 + y * cells // 1) % 2) + 0.35 * along
    elif pattern == "waves":
        across = y * np.cos(angle) - x * np.sin(angle)
        bend = 0.025 * np.sin(4 * np.pi * across)
        share = 0.5 + 0.25 * np.sin(2 * np.pi * rng.uniform(5, 8) * (along + bend))
    return np.asarray(share, np.float32)


def _cast_shadows(canvas: NDArray[np.float32], masks: Sequence[NDArray[np.float32]]) -> None:
    """Darkens the ground below and to the right of every thing."""
    side = canvas.shape[0]
    offset = max(round(side / 64), 1)
    shade = np.zeros((side, side), np.float32)
    for mask in masks:
        np.maximum(shade[offset:, offset:], mask[:-offset, :-offset], out=shade[offset:, offset:])
    soft = cv2.GaussianBlur(shade, (0, 0), side / 80)
    canvas *= (1 - 0.38 * soft)[..., None]


def _mixed(
    colour: tuple[int, int, int], other: tuple[int, int, int], share: float
) -> tuple[int, int, int]:
    red, green, blue = (round(a + share * (b - a)) for a, b in zip(colour, other, strict=True))
    return red, green, blue


def _rgb(thing: Thing) -> tuple[int, int, int]:
    return MUTED[thing.colour] if thing.is_clutter else COLOURS[thing.colour]


def _line_tone(thing: Thing) -> tuple[tuple[int, int, int], float]:
    if thing.is_clutter:
        return _BLACK, 0.16
    return (_WHITE, 0.3) if thing.colour == "black" else (_BLACK, 0.42)


def _texture_tone(colour: str) -> tuple[tuple[int, int, int], float]:
    return (_BLACK, 0.25) if colour == "white" else (_WHITE, 0.5 if colour == "black" else 0.62)


def _bgr(colour: tuple[int, int, int]) -> tuple[int, int, int]:
    return colour[::-1]
