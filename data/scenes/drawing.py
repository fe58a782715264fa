"""Drawings of scenes with OpenCV: background, clutter, soft shadows and antialiased objects.

Backgrounds are greyish and of medium lightness, so that colour words can only refer to objects, and
black and white objects are visible. Clutter has muted colours, no outline and no shadow.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor

import cv2
import numpy as np
from numpy.typing import NDArray

from a2cap.data.errors import InputError
from a2cap.data.scenes.objects import COLOURS, MUTED, SceneObject, outline
from a2cap.data.scenes.silhouettes import Contour, Silhouette

ImageArray = NDArray[np.uint8]
"""(H, W, 3) uint8, blue, green, red."""
JPEG_QUALITY = 95

TINTS = {
    "sand": (196, 184, 164),
    "stone": (174, 174, 178),
    "mist": (164, 182, 194),
    "sage": (168, 184, 164),
    "mauve": (184, 170, 186),
    "clay": (190, 170, 160),
}
"""Tint of the background -> red, green, blue in 0-255."""

PATTERNS = ("gradient", "noise", "checker", "waves")

_BLACK, _WHITE = (0, 0, 0), (255, 255, 255)

_OVERSAMPLING = 2
_SUBPIXEL_BITS = 4


@dataclass(frozen=True)
class Background:
    """A pattern of PATTERNS in a tint of TINTS; seed: of its angle, cells and grain."""

    pattern: str
    tint: str
    seed: int


def draw_image(
    objects: Sequence[SceneObject],
    background: Background,
    *,
    side: int,
    clutter: Sequence[SceneObject] = (),
) -> ImageArray:
    """Draw objects on background and clutter, the first at the back: (side, side, 3)."""
    canvas = _background_canvas(background, side=side)
    for piece in clutter:
        _paint(canvas, piece, silhouette_mask(piece, side=side))
    masks = [silhouette_mask(obj, side=side) for obj in objects]
    _cast_shadows(canvas, masks)
    for obj, mask in zip(objects, masks, strict=True):
        _paint(canvas, obj, mask)
    return np.clip(np.rint(canvas), 0, 255).astype(np.uint8)


def encode_jpeg(image: ImageArray) -> bytes:
    """Return the bytes of a JPEG file; raises InputError if OpenCV cannot encode one."""
    # Halved chroma, the default, would blur the colours of such small objects.
    options = [
        *(cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY),
        *(cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444),
    ]
    encoded, buffer = cv2.imencode(".jpg", image, options)
    if not encoded:
        raise InputError(
            f"OpenCV {cv2.__version__} cannot encode a JPEG; reinstall opencv-python-headless"
        )
    return buffer.tobytes()


def silhouette_mask(obj: SceneObject, *, side: int) -> NDArray[np.float32]:
    """Return the share of each pixel that an object covers: (side, side) float32 in [0, 1]."""
    coverage = np.zeros((side, side), np.float32)
    frame = _Frame.around(obj, side=side)
    coverage[frame.window] = frame.downsample(_fill(frame, outline(obj))) / 255
    return coverage


def footprint(obj: SceneObject, *, cells: int) -> NDArray[np.uint8]:
    """Rasterise an object of an image of side 1 on a grid: (cells, cells) uint8, 0 or 1."""
    grid = np.zeros((cells, cells), np.uint8)
    # without antialiasing: a cell is covered or not, so that masks combine with & and |
    for part in outline(obj).parts:
        scaled = [(contour * cells - 0.5) * 2**_SUBPIXEL_BITS for contour in part]
        contours = [np.asarray(np.rint(contour), np.int32) for contour in scaled]
        cv2.fillPoly(grid, contours, (1,), cv2.LINE_8, _SUBPIXEL_BITS)
    return grid


@dataclass(frozen=True)
class _Frame:
    """The pixels around an object, which is drawn in them with oversampling."""

    left: int
    top: int
    right: int
    bottom: int

    @classmethod
    def around(cls, obj: SceneObject, *, side: int) -> "_Frame":
        x1, y1, x2, y2 = obj.box
        return cls(
            left=max(floor(x1), 0),
            top=max(floor(y1), 0),
            right=min(ceil(x2), side),
            bottom=min(ceil(y2), side),
        )

    @property
    def window(self) -> tuple[slice, slice]:
        return slice(self.top, self.bottom), slice(self.left, self.right)

    @property
    def oversampled_shape(self) -> tuple[int, int]:
        height, width = self.bottom - self.top, self.right - self.left
        return height * _OVERSAMPLING, width * _OVERSAMPLING

    def fixed_point(self, contour: Contour) -> NDArray[np.int32]:
        """Return a contour for cv2.fillPoly."""
        # fillPoly has pixel centres at integer coordinates
        inside = (contour - (self.left, self.top)) * _OVERSAMPLING - 0.5
        return np.asarray(np.rint(inside * 2**_SUBPIXEL_BITS), np.int32)

    def downsample(self, oversampled: NDArray[np.uint8]) -> NDArray[np.float32]:
        size = (self.right - self.left, self.bottom - self.top)
        return cv2.resize(oversampled, size, interpolation=cv2.INTER_AREA).astype(np.float32)


def _fill(frame: _Frame, silhouette: Silhouette) -> NDArray[np.uint8]:
    image = np.zeros(frame.oversampled_shape, np.uint8)
    for part in silhouette.parts:
        contours = [frame.fixed_point(contour) for contour in part]
        cv2.fillPoly(image, contours, (255,), cv2.LINE_AA, _SUBPIXEL_BITS)
    return image


def _paint(canvas: NDArray[np.float32], obj: SceneObject, mask: NDArray[np.float32]) -> None:
    frame = _Frame.around(obj, side=canvas.shape[0])
    silhouette = outline(obj)
    surface = _surface(obj, frame)
    dark = _blend(_rgb(obj), *_line_tone(obj))
    for detail in silhouette.details:
        cv2.fillPoly(surface, [frame.fixed_point(detail)], dark, cv2.LINE_AA, _SUBPIXEL_BITS)
    if not obj.is_clutter:
        brush = np.ones((_OVERSAMPLING + 1, _OVERSAMPLING + 1), np.uint8)
        # the outline is what an erosion by one pixel of the image removes
        filled = _fill(frame, silhouette)
        inner = cv2.erode(filled, brush, borderType=cv2.BORDER_CONSTANT, borderValue=0)
        surface[inner < 128] = dark
    behind = canvas[frame.window]
    behind += (frame.downsample(surface) - behind) * mask[frame.window][..., None]


def _surface(obj: SceneObject, frame: _Frame) -> ImageArray:
    """Draw colour, texture and light from above, oversampled: (H, W, 3)."""
    height, width = frame.oversampled_shape
    colour = _rgb(obj)
    base = np.array(colour[::-1], np.float32)
    second = np.array(_blend(colour, *_texture_tone(obj.colour)), np.float32)
    share = _texture_share(obj, height=height, width=width)
    light = np.linspace(1.06, 0.9, height, dtype=np.float32)[:, None, None]
    surface = (base + share[..., None] * (second - base)) * light
    return np.asarray(np.clip(surface, 0, 255), np.uint8)


def _texture_share(obj: SceneObject, *, height: int, width: int) -> NDArray[np.float32]:
    """Return a mask of the second tone of the texture: (height, width), 0 or 1."""
    if obj.texture == "plain":
        return np.zeros((height, width), np.float32)
    y, x = np.ogrid[:height, :width]
    # five or six periods per object, none so fine that downsampling would blur it
    period = max(6.0 * _OVERSAMPLING, max(height, width) / 5.5)
    if obj.texture == "striped":
        return (((x + y) / period / 2**0.5) % 1 < 0.4).astype(np.float32)
    u, v = (x / period) % 1 - 0.5, (y / period) % 1 - 0.5
    return (u * u + v * v < 0.3**2).astype(np.float32)


def _background_canvas(background: Background, *, side: int) -> NDArray[np.float32]:
    rng = np.random.default_rng(background.seed)
    tint = TINTS[background.tint]
    dark = np.array(_blend(tint, _BLACK, 0.16), np.float32)
    light = np.array(_blend(tint, _WHITE, 0.2), np.float32)
    share = _background_share(background.pattern, rng, side=side)
    return dark + share[..., None] * (light - dark)


def _background_share(pattern: str, rng: np.random.Generator, *, side: int) -> NDArray[np.float32]:
    """Return the share of the lighter shade: (side, side), about 0 to 1."""
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
    """Darken the background below and to the right of every object."""
    side = canvas.shape[0]
    offset = max(round(side / 64), 1)
    shade = np.zeros((side, side), np.float32)
    for mask in masks:
        below = shade[offset:, offset:]
        np.maximum(below, mask[:-offset, :-offset], out=below)
    soft = cv2.GaussianBlur(shade, (0, 0), side / 80)
    canvas *= (1 - 0.38 * soft)[..., None]


def _blend(
    colour: tuple[int, int, int], other: tuple[int, int, int], share: float
) -> tuple[int, int, int]:
    """Mix two colours; red, green, blue become blue, green, red."""
    red, green, blue = (round(a + share * (b - a)) for a, b in zip(colour, other, strict=True))
    return blue, green, red


def _rgb(obj: SceneObject) -> tuple[int, int, int]:
    return MUTED[obj.colour] if obj.is_clutter else COLOURS[obj.colour]


def _line_tone(obj: SceneObject) -> tuple[tuple[int, int, int], float]:
    if obj.is_clutter:
        return _BLACK, 0.16
    return (_WHITE, 0.3) if obj.colour == "black" else (_BLACK, 0.42)


def _texture_tone(colour: str) -> tuple[tuple[int, int, int], float]:
    return (_BLACK, 0.25) if colour == "white" else (_WHITE, 0.5 if colour == "black" else 0.62)
