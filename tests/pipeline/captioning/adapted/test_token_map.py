"""Tokens of vision-language models as cells of the image, and the map of each processor."""

import numpy as np
import pytest
import torch
from PIL import Image

transformers = pytest.importorskip("transformers", reason="needs a2cap[transformers]")

from a2cap.data.captions.attention_file import CaptionAttention  # noqa: E402
from a2cap.model.adapting.image_columns import image_columns  # noqa: E402
from a2cap.pipeline.captioning.adapted.tiles import locate, process_ramps  # noqa: E402
from a2cap.pipeline.captioning.adapted.token_map import NoGrid, map_tokens  # noqa: E402
from tests.model.adapting.vision_language import BUILDERS, PATCH, SIDE, build, inputs  # noqa: E402
from tests.quick import some_quick  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
# of each rule in the quick tests: one tile, tiles, packed tiles, patches
QUICK = ("llava", "internvl", "llava_next", "qwen2_vl")
CROP = {"crop_size": 30, "do_center_crop": True}
SIZES = [(60, 60), (40, 80), (120, 40), (61, 47), (333, 500)]  # width, height


def local(name):
    """Return a model whose image encoder does not mix patches, so that each token sees its cell."""
    small = build(name)
    encoders, mixing = ("vision", "visual", "image_encoder"), ("out_proj", "o_proj", "attn.proj")
    parameters = [
        parameter
        for key, parameter in small.model.named_parameters()
        if any(part in key for part in encoders)
        and any(f"{part}." in key for part in (*mixing, "projection_layer"))
    ]
    assert parameters
    with torch.no_grad():
        for parameter in parameters:
            parameter.zero_()
    return small


def states(small, image):
    """Return what the language model reads in place of each token of the image, (N, D)."""
    read = {}
    is_git = hasattr(small.model, "git")
    decoder = small.model.git.encoder if is_git else small.model.get_decoder()

    def keep(module, args, kwargs):
        read["states"] = args[0] if args else kwargs["inputs_embeds"]

    hook = decoder.register_forward_pre_hook(keep, with_kwargs=True)
    given = inputs(small, [image])
    start = {"input_ids": torch.ones(1, 1).long()} if is_git else {}
    with torch.no_grad():
        small.model(**given, **start)
    hook.remove()
    return read["states"][0, image_columns(small.model, given)[0]].detach()


def mapped(small, width, height, tokens):
    ramps = process_ramps(
        lambda images: inputs(small, images), small.model.config, width=width, height=height
    )
    return map_tokens(small.model, ramps, tokens)


def with_cell(background, box):
    pixels = background.copy()
    x1, y1, x2, y2 = np.round(box).astype(int)
    pixels[y1 : max(y2, y1 + 1), x1 : max(x2, x1 + 1)] = 255
    return Image.fromarray(pixels)


@pytest.mark.parametrize("name", some_quick(BUILDERS, *QUICK))
def test_a_bright_cell_comes_back_at_its_place(name):
    """The tokens that a bright cell changes most, on the grid: in portrait and 3:1 images too."""
    small, noise, worst = local(name), np.random.default_rng(0), 0.0
    for width, height in SIZES:
        background = noise.integers(90, 110, (height, width, 3), dtype=np.uint8)
        before = states(small, Image.fromarray(background))
        tokens = mapped(small, width, height, len(before))
        boxes = tokens.boxes
        assert boxes.min() >= 0 and (boxes <= [width, height, width, height]).all()
        for cell in noise.choice(len(boxes), 4, replace=False):
            changed = (states(small, with_cell(background, boxes[cell])) - before).norm(dim=-1)
            if name == "git":
                changed[0] = 0  # the class token sees all
            brightest = boxes[tokens.spread(changed.numpy()[None])[0].argmax()]
            distance = np.abs(brightest - boxes[cell])[:2] / (boxes[cell][2:] - boxes[cell][:2])
            worst = max(worst, float(distance.max()))
    assert worst <= 1.01, name


def test_attention_to_padding_and_ends_of_rows_is_left_out():
    small = build("llava_next")
    image = Image.fromarray(np.full((40, 120, 3), 99, np.uint8))
    count = len(states(small, image))
    tokens = mapped(small, 120, 40, count)
    rows = tokens.spread(np.eye(count, dtype=np.float32))
    sums = rows.sum(axis=1)
    base, ends = (SIDE // PATCH) ** 2, slice((SIDE // PATCH) ** 2 + 18, None, 19)
    assert np.allclose(sums[ends], 0)
    # the base tile is stretched to a square; each further cell has all of its attention
    assert np.allclose(sums[:base], 1, atol=1e-3)
    assert np.allclose(np.delete(sums, [*range(base), *range(count)[ends]]), 1, atol=1e-3)
    mask = np.full((1, count), 0.5, np.float32)
    spread = tokens.attention(CaptionAttention(mask, mask, keep=mask))
    assert np.allclose(spread.keep, 0.5, atol=1e-3)


def test_a_grid_without_padding_moves_no_number():
    small = build("git")
    tokens = mapped(small, 61, 47, 37)
    values = np.random.default_rng(0).random((2, 3, 37), dtype=np.float32)
    np.testing.assert_array_equal(tokens.spread(values), values[..., 1:])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"size": {"height": 30, "width": 30}}, (0, 0, 90, 60)),
        ({"size": {"shortest_edge": 30}, **CROP}, (15, 0, 75, 60)),
        ({"size": {"shortest_edge": 60}, **CROP}, (30, 15, 60, 45)),
        ({"size": {"shortest_edge": 30}}, (0, 0, 90, 60)),
    ],
)
def test_a_processor_is_measured_through_resize_and_crop(options, expected):
    processor = transformers.CLIPImageProcessor(
        **{"do_center_crop": False, **options}, image_mean=[0.5] * 3, image_std=[0.2] * 3
    )

    def process(images):
        return processor(images=images, return_tensors="pt")

    [ramps] = process_ramps(process, None, width=90, height=60).tiles
    tile = locate(ramps, width=90, height=60)
    y, x = tile.in_image(np.array([0, tile.height]), np.array([0, tile.width]))
    assert [*x[:1], *y[:1], *x[1:], *y[1:]] == pytest.approx(expected, abs=1.1)


def test_padding_is_no_part_of_the_image_and_other_changes_are_refused():
    black, white = np.zeros((8, 8)), np.ones((8, 8))
    x, y = np.tile((np.arange(8) + 0.5) / 8, (8, 1)), np.tile((np.arange(8) + 0.5) / 8, (8, 1)).T
    white[:, 4:] = x[:, 4:] = y[:, 4:] = 0  # the right half is padding
    x = np.where(white > 0, 2 * x, 0)
    tile = locate(np.stack([black, white, x, y]).astype(np.float32), width=40, height=80)
    edges_y, edges_x = tile.in_image(np.array([0.0, 8.0]), np.array([0.0, 4.0, 8.0]))
    assert edges_x == pytest.approx([0, 40, 80], abs=2) and edges_y == pytest.approx([0, 80], abs=1)
    bent = np.stack([black, np.ones((8, 8)), x**4, y]).astype(np.float32)
    assert locate(bent, width=40, height=80).in_image(edges_y, edges_x) is None
    nothing = np.zeros((4, 8, 8), np.float32)
    assert locate(nothing, width=40, height=80).in_image(edges_y, edges_x) is None


def test_a_count_of_tokens_that_is_no_grid_is_stated():
    small = build("git")
    for tokens in (35, 2):
        with pytest.raises(NoGrid) as error:
            mapped(small, 9, 9, tokens)
        assert str(error.value) == (
            f"{tokens} tokens of GitForCausalLM are not the cells of 1 tiles of 24 x 24 pixels"
        )
