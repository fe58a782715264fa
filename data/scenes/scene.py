"""One generated scene: a pure function of its seed and index, and its image."""

from dataclasses import dataclass

import numpy as np

from a2cap.data.scenes.captions import Caption, captions_of
from a2cap.data.scenes.clutter import cluttered
from a2cap.data.scenes.drawing import PATTERNS, TINTS, AnnotatedImage, Ground, draw_image
from a2cap.data.scenes.layout import arranged, one_of
from a2cap.data.scenes.objects import Thing


@dataclass(frozen=True)
class Scene:
    """One image's description.

    image_id: 12 decimal digits. side: width and height in pixels.
    things: back to front; clutter: behind them, unspoken of; captions: five, each a tuple of words
    with the indices of their things.
    """

    image_id: str
    side: int
    ground: Ground
    things: tuple[Thing, ...]
    clutter: tuple[Thing, ...]
    captions: tuple[Caption, ...]

    @property
    def file_name(self) -> str:
        """Name of the image in the folder of images."""
        return f"{self.image_id}.jpg"


def make_scene(index: int, *, seed: int, side: int, planted: float = 0.0) -> Scene:
    """The scene with this index, counted from 0; its image id is one more.

    planted: as for `cluttered`; the ground, the things and the captions do not depend on it.
    """
    rng = np.random.default_rng((seed, index))
    ground = Ground(
        pattern=one_of(PATTERNS, rng),
        tint=one_of(tuple(TINTS), rng),
        seed=int(rng.integers(2**31)),
    )
    things = arranged(rng)
    captions = captions_of(things, rng)
    clutter = cluttered(things, rng, planted=planted)
    return Scene(
        image_id=f"{index + 1:012d}",
        side=side,
        ground=ground,
        things=tuple(thing.scaled(side) for thing in things),
        clutter=tuple(piece.scaled(side) for piece in clutter),
        captions=captions,
    )


def draw(scene: Scene) -> AnnotatedImage:
    """The scene's image: (side, side, 3) uint8, blue, green, red."""
    return draw_image(scene.things, scene.ground, side=scene.side, clutter=scene.clutter)


def raw_text(caption: Caption) -> str:
    """The caption as a person writes it: a capital, spaces and a full stop."""
    return " ".join(word.text for word in caption).capitalize() + "."
