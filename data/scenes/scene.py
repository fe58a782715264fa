"""A generated scene, a pure function of its seed and index."""

from dataclasses import dataclass

import numpy as np

from a2cap.data.scenes.captions import SceneCaption, generate_captions
from a2cap.data.scenes.clutter import place_clutter
from a2cap.data.scenes.drawing import PATTERNS, TINTS, Background, ImageArray, draw_image
from a2cap.data.scenes.layout import arrange, choose
from a2cap.data.scenes.objects import SceneObject


@dataclass(frozen=True)
class Scene:
    """The content of one image.

    image_id: 12 decimal digits.
    side: width and height in pixels.
    objects: back to front.
    clutter: behind them.
    captions: five, each a tuple of words with the indices of their objects.
    """

    image_id: str
    side: int
    background: Background
    objects: tuple[SceneObject, ...]
    clutter: tuple[SceneObject, ...]
    captions: tuple[SceneCaption, ...]

    @property
    def file_name(self) -> str:
        """Name of the image file."""
        return f"{self.image_id}.jpg"


def make_scene(index: int, *, seed: int, side: int, planted: float = 0.0) -> Scene:
    """Generate the scene with an index, counted from 0; its image id is one more.

    planted: as in `place_clutter`; background, objects and captions do not depend on it.
    """
    rng = np.random.default_rng((seed, index))
    # The order of the draws is part of SCENES_VERSION; clutter is last, so that `planted` changes
    # nothing else.
    background = Background(
        pattern=choose(PATTERNS, rng),
        tint=choose(tuple(TINTS), rng),
        seed=int(rng.integers(2**31)),
    )
    objects = arrange(rng)
    captions = generate_captions(objects, rng)
    clutter = place_clutter(objects, rng, planted=planted)
    return Scene(
        image_id=f"{index + 1:012d}",
        side=side,
        background=background,
        objects=tuple(obj.scaled(side) for obj in objects),
        clutter=tuple(piece.scaled(side) for piece in clutter),
        captions=captions,
    )


def draw(scene: Scene) -> ImageArray:
    """Draw a scene: (side, side, 3) uint8, blue, green, red."""
    return draw_image(scene.objects, scene.background, side=scene.side, clutter=scene.clutter)


def raw_text(caption: SceneCaption) -> str:
    """Return a caption as people write it, with a capital and a full stop."""
    return " ".join(word.text for word in caption).capitalize() + "."
