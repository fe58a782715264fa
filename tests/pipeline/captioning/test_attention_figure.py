"""The attention figure: panels, brightness, formats and paths."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgba
from PIL import Image

from a2cap.data.captions.attention_file import CaptionAttention
from a2cap.data.errors import ConfigError
from a2cap.data.files.atomic import write_durably
from a2cap.data.regions import Regions, cell_boxes
from a2cap.pipeline.captioning.attention_figure import FigurePaths, attention_figure, write_figure
from a2cap.pipeline.captioning.captioned_image import CaptionedImage
from a2cap.pipeline.captioning.decoding import Beam
from a2cap.pipeline.captioning.named_images import NamedImage
from a2cap.pipeline.captioning.outputs.output import UnwritableError
from tests.data.messages import message_of

REGIONS = Regions(
    boxes=np.array([[0, 0, 50, 40], [50, 40, 100, 80]], np.float32),
    features=np.zeros((2, 4), np.float32),
    scores=np.ones(2, np.float32),
    class_ids=np.zeros(2, np.int32),
    attribute_ids=None,
    width=100,
    height=80,
)
BLACK = np.zeros((80, 100, 3), np.uint8)


def captioned(*words):
    """Build captions from (word, original, aligned attention over the two regions)."""
    originals, aligned = (
        np.array([word[kind] for word in words], np.float32).reshape(-1, 2) for kind in (1, 2)
    )
    count = len(words)
    weights = CaptionAttention(
        originals, aligned, np.full((count, 2), 0.5), np.full(count, 0.25, np.float32)
    )
    return CaptionedImage([Beam(" ".join(word[0] for word in words), -1.0)], REGIONS, weights)


def figure_of(captioned_image, pixels=BLACK):
    return attention_figure(pixels, captioned_image)


SEVEN = captioned(*[(f"w{n}", [0.5, 0.5], [1.0, 0.25]) for n in range(7)])


def drawn(axes):
    """Return the brightness (80, 100) of a panel of a black image; 255 is faded completely."""
    return np.asarray(axes.images[0].get_array())[:, :, 0]


@pytest.mark.slow
def test_each_word_has_its_original_above_its_aligned_attention():
    figure = figure_of(SEVEN)
    image, *panels = figure.axes
    assert figure.get_supxlabel() == (
        "pale is not attended, framed is attended most; "
        "× even: the largest share over an even one; gate: 1 keeps the original attention"
    )
    assert image.get_title() == "w0 w1 w2 w3 w4 w5 w6"
    assert [axes.get_title() for axes in panels] == [
        word for n in range(7) for word in (f"w{n}", "")
    ]
    assert [axes.get_xlabel() for axes in panels[:2]] == ["spread evenly", "1.6 × even, gate 0.25"]
    labels = [axes.get_ylabel() for axes in panels if axes.get_ylabel()]
    assert labels == ["original", "aligned"] * 2  # a line of six words, and one of one
    for original, aligned in zip(panels[::2], panels[1::2], strict=True):
        above, below = (axes.get_subplotspec() for axes in (original, aligned))
        assert below.rowspan.start == above.rowspan.start + 1
        assert below.colspan == above.colspan


def test_what_is_not_attended_fades_on_one_scale_and_even_attention_fades_nothing():
    image = captioned(("a", [0.5, 0.5], [2, 0]), ("b", [0.75, 0.25], [0.5, 1.5]))
    panels = figure_of(image).axes[1:]
    even, *others = panels
    assert (even.get_xlabel(), list(even.patches), drawn(even).max()) == ("spread evenly", [], 0)
    weights = [(1, 0), (0.5, 0), (0, 0.5)]  # share above an even one, the largest is 1
    for axes, (first, second) in zip(others, weights, strict=True):
        shown, depth = drawn(axes), 0.75 * max(first, second)  # a weaker panel fades less
        assert shown[20, 25] == int(255 * depth * (1 - first))
        assert shown[60, 75] == int(255 * depth * (1 - second))
        assert shown[20, 75] == int(255 * depth)  # no region there
    frames = [axes.patches[0].get_bbox().bounds for axes in others]
    assert frames == [(0, 0, 50, 40)] * 2 + [(50, 40, 50, 40)]


def grid_figure(side, area, *rows):
    """Return the figure of a grey image for words with this attention over side x side cells."""
    cells = {
        name: np.zeros((side**2, *getattr(REGIONS, name).shape[1:]), np.float32)
        for name in ("features", "scores", "class_ids")
    }
    attention = np.array(rows, np.float32)
    image = CaptionedImage(
        [Beam(" ".join(f"w{n}" for n in range(len(rows))), -1.0)],
        replace(REGIONS, boxes=cell_boxes(side, area), **cells),
        CaptionAttention(attention, attention, None, None),
    )
    return figure_of(image, np.full((80, 100, 3), 100, np.uint8))


def test_attention_over_a_grid_is_a_smooth_light():
    figure = grid_figure(2, (10, 0, 90, 80), [0, 0, 0, 1])  # cut out of the middle
    assert figure.get_supxlabel() == (
        "white is attended; × even: the largest share over an even one"
    )
    shown = drawn(figure.axes[1])
    assert shown.max() == shown[79, 89] == int(0.3 * 100 + 0.7 * 255)
    assert shown[79, 0] == shown[79, 99] == 30
    assert shown[0, 10] < 35
    row = shown[79, 10:90].astype(int)
    assert (np.diff(row) >= 0).all() and len(set(row)) > 20


def test_beside_a_strong_word_the_image_of_an_even_or_weak_one_stays_visible():
    even, weak, strong = (np.full(49, 1 / 49) for _ in range(3))
    weak[:7], weak[7:] = 2 / 49, 35 / 42 / 49
    strong[24], strong[:24], strong[25:] = 0.9, 0.1 / 48, 0.1 / 48
    whole = (0, 0, 100, 80)
    panels = grid_figure(7, whole, even, weak, strong).axes[1:]
    assert [axes.get_xlabel() for axes in panels] == ["spread evenly", "2.0 × even", "44.1 × even"]
    assert (drawn(panels[0]) == 100).all()
    assert drawn(panels[1]).min() >= 95 and drawn(panels[1]).mean() < 100
    assert drawn(panels[2]).min() <= 31 and drawn(panels[2]).max() > 200
    # without a strong word, the weak one is drawn on a scale of its own
    _, alone = grid_figure(7, whole, even, weak).axes[1:]
    assert drawn(alone).max() > 130 > drawn(panels[1]).max()


def test_large_images_and_their_boxes_are_scaled_down():
    large = replace(REGIONS, boxes=REGIONS.boxes * 40, width=4000, height=3200)
    image = replace(captioned(("a", [0, 1], [0, 1])), regions=large)
    axes = figure_of(image, np.zeros((3200, 4000, 3), np.uint8)).axes[1]
    assert drawn(axes).shape == (256, 320)
    assert axes.patches[0].get_bbox().bounds == pytest.approx((160, 128, 160, 128))


def test_without_masks_there_is_one_panel_per_word():
    weights = SEVEN.attention
    plain = CaptionAttention(weights.original, weights.original)
    panels = figure_of(replace(SEVEN, attention=plain)).axes[1:]
    assert [axes.get_title() for axes in panels] == [f"w{n}" for n in range(7)]
    assert {(axes.get_ylabel(), axes.get_xlabel()) for axes in panels} == {("", "spread evenly")}


def test_a_caption_without_words_shows_the_image():
    [image] = figure_of(captioned()).axes
    assert image.get_title() == "(no words)"


BLUE, RED = (to_rgba("#1f77b4"), to_rgba("#d62728"))


def test_boxes_are_those_of_the_top_regions_before_and_after_alignment():
    image = captioned(("a", [0.9, 0.1], [0.9, 1.2]), ("b", [0.2, 0.8], [0.2, 0.9]))
    whole, *panels = attention_figure(BLACK, image, style="boxes").axes
    assert [text.get_text() for text in whole.get_legend().get_texts()] == ["original", "aligned"]
    assert [axes.get_title() for axes in panels] == ["a", "b"]
    first, second = (0, 0, 50, 40), (50, 40, 50, 40)
    for axes, expected in zip(panels, [(first, second), (second, second)], strict=True):
        boxes = [(patch.get_edgecolor(), patch.get_bbox().bounds) for patch in axes.patches]
        assert boxes == list(zip((BLUE, RED), expected, strict=True))
    plain = CaptionAttention(image.attention.original, image.attention.original)
    panels = attention_figure(BLACK, replace(image, attention=plain), style="boxes").axes[1:]
    assert [patch.get_edgecolor() for axes in panels for patch in axes.patches] == [BLUE, BLUE]


def test_the_attention_of_a_second_captioner_is_below_on_its_own_scale_and_regions():
    image = captioned(("a", [0.5, 0.5], [0.2, 1.8]), ("b", [0.5, 0.5], [0.5, 0.5]))
    moved = replace(REGIONS, boxes=REGIONS.boxes[::-1])
    weak = np.array([[0.2, 0.8], [0.5, 0.5]], np.float32)
    other = replace(image, regions=moved, attention=CaptionAttention(weak, weak))
    panels = attention_figure(BLACK, image, below=other, names=("soft", "hard")).axes[1:]
    assert [axes.get_ylabel() for axes in panels] == ["soft", "hard", "", ""]
    notes = ["1.8 × even", "1.6 × even", "spread evenly", "spread evenly"]
    assert [axes.get_xlabel() for axes in panels] == notes
    frames = [axes.patches[0].get_bbox().bounds for axes in panels[:2]]
    assert frames == [(50, 40, 50, 40), (0, 0, 50, 40)]
    assert [drawn(axes)[60, 75] for axes in panels[:2]] == [0, int(255 * 0.75 * 0.6)]


@pytest.mark.parametrize("words", [["dog"], []])
def test_an_animation_has_a_frame_for_each_word_and_ends_with_the_image(tmp_path, words):
    Image.new("RGB", (100, 80), "green").save(tmp_path / "image.png")
    image = captioned(*[(word, [0.5, 0.5], [0, 1]) for word in words])
    write_figure(tmp_path / "a.gif", NamedImage(tmp_path / "image.png"), image)
    with Image.open(tmp_path / "a.gif") as animation:
        assert animation.n_frames == len(words) + 1
        corners = []
        for number in range(animation.n_frames):
            animation.seek(number)
            corners.append(animation.convert("RGB").getpixel((5, 5)))
            assert animation.info["duration"] == (700 if number < len(words) else 2000)
        assert corners[-1] == (0, 128, 0)
        assert all(corner[0] > 100 for corner in corners[:-1])  # faded


@pytest.mark.parametrize("size", [(1, 300), (300, 1)])
def test_an_animation_of_a_thin_image_is_not_longer_than_twice_its_width(tmp_path, size):
    Image.new("RGB", size).save(tmp_path / "image.png")
    image = captioned(("dog", [0.5, 0.5], [0, 1]))
    write_figure(tmp_path / "a.gif", NamedImage(tmp_path / "image.png"), image)
    with Image.open(tmp_path / "a.gif") as animation:
        assert animation.height < 2.5 * animation.width


STARTS = {"png": b"\x89PNG", "JPG": b"\xff\xd8", "webp": b"RIFF", "pdf": b"%PDF", "svg": b"<?xml"}


@pytest.mark.slow
@pytest.mark.parametrize(("suffix", "start"), STARTS.items())
def test_the_suffix_sets_the_format_and_any_script_can_be_drawn(tmp_path, suffix, start):
    Image.new("RGB", (100, 80)).save(tmp_path / "image.png")
    words = captioned(("$x_狗", [0.5, 0.5], [1, 1]))
    drawn = tmp_path / f"a.{suffix}"
    write_figure(drawn, NamedImage(tmp_path / "image.png"), words)
    assert drawn.read_bytes().startswith(start)
    assert set(tmp_path.iterdir()) == {tmp_path / "image.png", drawn}


def test_long_names_of_images_are_shortened(tmp_path):
    paths = FigurePaths(tmp_path / "figures", many=True)
    for end in ("a", "b"):
        path = paths.for_image(NamedImage(Path("ü" * 120 + end + ".jpg")))
        write_durably(path, b"figure")
    names = {name.stem for name in (tmp_path / "figures").iterdir()}
    assert names == {"ü" * 110, "ü" * 110 + "-2"}


def test_paths_of_figures(tmp_path):
    path_of_one = FigurePaths(tmp_path / "in" / "x.SVG", many=False)
    assert path_of_one.for_image(NamedImage(Path("dog.jpg"))) == tmp_path / "in" / "x.SVG"
    assert (tmp_path / "in").is_dir()
    many = FigurePaths(tmp_path / "figures", many=True)
    for name in ("a/dog.jpg", "a/cat.jpg", "a/cat.png", "b/dog.jpg", "c/dog-2.jpg", "c/dog.v2.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    images = ["a/dog.jpg", "b/dog.jpg", "c/dog-2.jpg", "c/dog.v2.jpg"]
    assert [many.for_image(NamedImage(tmp_path / name)).name for name in images] == [
        *["dog.png", "dog-2.png", "dog-2-2.png", "dog.v2.png"]
    ]
    folders = FigurePaths(tmp_path / "figures", many=True)
    paths = [
        folders.for_image(NamedImage(tmp_path / name, Path(name))).relative_to(tmp_path / "figures")
        for name in ("a/cat.png", "a/dog.jpg", "b/dog.jpg", "a/cat.jpg")
    ]
    names = ["a/cat.png.png", "a/dog.png", "b/dog.png", "a/cat.jpg.png"]
    assert list(map(str, paths)) == names
    with pytest.raises(ConfigError):
        FigurePaths(tmp_path / "x.png", many=True)


@pytest.mark.parametrize(("figure", "many"), [("dog.png", False), ("", True), ("", False)])
def test_a_figure_does_not_replace_an_image(tmp_path, figure, many):
    image = tmp_path / "dog.png"
    image.touch()
    paths = FigurePaths(tmp_path / figure, many=many)
    error = ConfigError if figure else UnwritableError  # which skips one image of many
    assert message_of(paths.for_image, NamedImage(image), error=error) == (
        f"--figure would replace a file beside the image: {str(image)!r}; name another file or "
        "folder"
    )


@pytest.mark.parametrize(("name", "many"), [("x.bmp", False), ("x.bmp", True), ("x.eps", False)])
def test_an_unknown_suffix_of_a_figure_is_refused_unless_it_is_a_folder(tmp_path, name, many):
    path = tmp_path / name
    assert message_of(FigurePaths, path, many=many, error=ConfigError) == (
        f"--figure has an unknown suffix: {str(path)!r}; use one of .png, .jpg, .jpeg, .webp, "
        ".pdf, .svg, .gif, or name a folder without a suffix"
    )
    path.mkdir()
    image = tmp_path / "a.jpg"
    image.touch()
    assert FigurePaths(path, many=many).for_image(NamedImage(image)) == path / "a.png"
