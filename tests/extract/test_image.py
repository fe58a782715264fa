import os
import resource
import subprocess
import sys
import warnings
from importlib.util import find_spec
from io import BytesIO
from itertools import product

import cv2
import numpy as np
import pytest
from PIL import ExifTags, Image, ImageFile, ImageOps

from a2cap.data.errors import InputError, UnreadableError
from a2cap.data.files.image_file import image_size
from a2cap.extract.image import _BYTES_PER_PIXEL_OF, read_image
from tests.data.messages import message_of
from tests.users import nobody

FORMATS = "JPEG, PNG, WebP, AVIF, HEIC, GIF, BMP, TIFF or MPO"


HAS_HEIF = find_spec("pillow_heif") is not None
if HAS_HEIF:
    import pillow_heif

    pillow_heif.register_heif_opener()  # for saving
NEEDS_HEIF = pytest.mark.skipif(not HAS_HEIF, reason="pillow-heif is not installed")


@pytest.fixture
def rgb(make_image):
    return Image.fromarray(make_image(0)[:, :, ::-1].copy())


def by_opencv(path):
    pixels = cv2.imread(str(path))
    assert pixels is not None
    return pixels


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("image.jpg", "RGB"),
        ("image.jpg", "L"),
        ("image.png", "RGB"),
        ("image.bmp", "RGB"),
        ("image.webp", "RGB"),
        ("ein Bild é 図.jpg", "RGB"),
    ],
)
def test_images_have_the_pixels_of_opencv(tmp_path, rgb, name, mode):
    path = tmp_path / name
    rgb.convert(mode).save(path)
    pixels = read_image(path)
    assert pixels.shape == (96, 128, 3)
    assert pixels.dtype == np.uint8
    assert np.array_equal(pixels, by_opencv(path))


def test_cmyk_keeps_its_colours(tmp_path, rgb):
    path = tmp_path / "image.jpg"
    rgb.convert("CMYK").save(path, quality=95)
    difference = np.abs(read_image(path).astype(int) - np.asarray(rgb)[:, :, ::-1])
    assert difference.mean() < 2


def test_palette_keeps_its_colours(tmp_path, rgb):
    palette = rgb.quantize(32)
    palette.save(tmp_path / "image.png")
    expected = np.asarray(palette.convert("RGB"))[:, :, ::-1]
    assert np.array_equal(read_image(tmp_path / "image.png"), expected)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparent_pixels_are_laid_on_white(tmp_path, rgb, mode):
    path = tmp_path / "image.png"
    if mode == "P":
        rgb.quantize(8).save(path, transparency=bytes(8))
    else:
        Image.new("RGBA", (4, 4), (0, 0, 0, 0)).convert(mode).save(path)
    assert (read_image(path) == 255).all()


@pytest.mark.parametrize(("channels", "suffix"), [(1, "png"), (3, "png"), (1, "tif")])
def test_16_bit_samples_are_scaled_not_clipped(tmp_path, make_image, channels, suffix):
    path = tmp_path / f"image.{suffix}"
    image = make_image(0)[:, :, :channels]
    # the low byte differs from the high one, so that taking it is an error
    cv2.imwrite(str(path), image.astype(np.uint16) * 256 + (255 - image))
    assert np.array_equal(read_image(path), np.broadcast_to(image, (96, 128, 3)))


def test_deeper_samples_are_refused(tmp_path):
    path = tmp_path / "image.tif"
    Image.fromarray(np.full((4, 4), 70_000, np.int32)).save(path)
    message = "image 'image.tif' cannot be decoded: its samples have more than 16 bits; "
    with pytest.raises(InputError, match=message):
        read_image(path)
    Image.fromarray(np.full((4, 4), 0.5, np.float32)).save(path)
    with pytest.raises(InputError, match="cannot be decoded: its samples are fractions; get"):
        read_image(path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("suffix", "orientation"),
    [*product(["jpg"], [None, *range(1, 9)]), *product(["png", "webp"], [None, 6])],
)
def test_exif_orientation_is_applied_as_opencv_does(tmp_path, rgb, suffix, orientation):
    path = tmp_path / f"image.{suffix}"
    exif = Image.Exif()
    if orientation is not None:
        exif[0x0112] = orientation
    rgb.save(path, exif=exif)
    pixels = read_image(path)
    assert pixels.shape == ((128, 96, 3) if (orientation or 1) > 4 else (96, 128, 3))
    assert image_size(path) == pixels.shape[1::-1]
    assert suffix == "webp" or np.array_equal(pixels, by_opencv(path))  # OpenCV turns no WebP


def test_the_first_frame_of_an_animation_is_read(tmp_path):
    path = tmp_path / "image.gif"
    first, second = Image.new("RGB", (8, 8), "white"), Image.new("RGB", (8, 8), "black")
    first.save(path, save_all=True, append_images=[second])
    assert (read_image(path) == 255).all()


@pytest.mark.parametrize("suffix", ["jpg", "png", "gif", "bmp"])
@pytest.mark.parametrize("part", [0.5, 0.9, 0.99])
def test_a_truncated_image_is_never_returned(tmp_path, rgb, suffix, part):
    path = tmp_path / f"image.{suffix}"
    # as a thumbnail in EXIF does, the comment contains the marker that ends a JPEG
    rgb.save(path, **({"comment": b"\xff\xd9"} if suffix == "jpg" else {}))
    whole = path.read_bytes()
    path.write_bytes(whole[: int(part * len(whole))])
    message = f"image 'image.{suffix}' cannot be decoded: image file is truncated"
    with pytest.raises(InputError, match=message + ".*; get the file again"):
        read_image(path)


def test_a_jpeg_is_decoded_once(tmp_path, rgb, monkeypatch):
    path = tmp_path / "image.jpg"
    rgb.save(path, progressive=True)
    expected = by_opencv(path)
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: pytest.fail("decoded by Pillow"))
    assert np.array_equal(read_image(path), expected)


POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n"
UNSUPPORTED = "{} is not in a supported format: it is "


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "{} is empty: 0 bytes; get the file again"),
        (b"<!DOCTYPE html><html></html>", UNSUPPORTED + "a web page; get the file again"),
        (POSTSCRIPT, UNSUPPORTED + "PostScript; save it as JPEG"),
        (b"\x89PNG\r\n\x1a\n", UNSUPPORTED + "PNG without a readable header; get the file again"),
        (b"\0\0\0\x20ftypisom", UNSUPPORTED + "a video; save a frame of it as JPEG"),
        (b"\0\0\0\x0cjP  \r\n", UNSUPPORTED + "JPEG 2000; save it as JPEG"),
        (
            b"\n Not \x1b[31m\nfound",
            UNSUPPORTED + r"text, 'Not \x1b[31m found'…; get the file again",
        ),
        (
            b"\0\x01\x02\x03\x04",
            UNSUPPORTED + "of an unknown kind (00 01 02 03); get the file again, as " + FORMATS,
        ),
        (
            b"\0\0\0\x1cftypavif" + bytes(16),
            UNSUPPORTED + "AVIF without a readable header; get the file again",
        ),
        pytest.param(
            b"\0\0\0\x1cftypheic" + bytes(16),
            UNSUPPORTED + "HEIC without a readable header; get the file again",
            marks=NEEDS_HEIF,
        ),
    ],
)
def test_a_file_without_an_image_is_refused(tmp_path, content, message):
    (tmp_path / "a.jpg").write_bytes(content)
    assert message_of(read_image, tmp_path / "a.jpg") == message.format("image 'a.jpg'")
    assert message_of(image_size, tmp_path / "a.jpg") == (
        f"image 'a.jpg' has no readable header; get the file again, as {FORMATS}"
    )


def lead_to_itself(path):
    path.symlink_to(path.name)


def lead_to_a_failing_disk(path):
    path.symlink_to("/proc/self/mem")  # the system answers a read at its start with EIO


@pytest.mark.parametrize("read", [read_image, image_size])
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: None, "No such file or directory"),
        (lead_to_itself, "Too many levels of symbolic links"),
        (lead_to_a_failing_disk, "Input/output error"),
    ],
)
def test_a_file_that_cannot_be_read_is_not_called_damaged(tmp_path, read, make, reason):
    make(tmp_path / "a.jpg")
    assert message_of(read, tmp_path / "a.jpg", error=UnreadableError) == (
        f"cannot read image 'a.jpg': {reason}; check the image folder"
    )


@pytest.mark.parametrize("read", [read_image, image_size])
def test_a_file_without_the_permission_to_read_it_is_not_called_damaged(tmp_path, read):
    (tmp_path / "a.jpg").touch(mode=0)
    with nobody():
        message = message_of(read, tmp_path / "a.jpg", error=UnreadableError)
    assert message == "cannot read image 'a.jpg': Permission denied; check the image folder"


OUT_OF_MEMORY = "out of memory while reading image 'a.jpg'; free memory, and run again"


@pytest.mark.parametrize(
    "failing", ["PIL.Image.Image.load", "a2cap.extract.image.decode_jpeg", "PIL.Image.open"]
)
def test_memory_that_runs_out_is_not_damage(tmp_path, rgb, monkeypatch, failing):
    def fail(*arguments, **options):
        raise MemoryError

    rgb.save(tmp_path / "a.jpg", "PNG" if failing.endswith("load") else "JPEG")
    with monkeypatch.context() as patch:
        patch.setattr(failing, fail)
        message = message_of(read_image, tmp_path / "a.jpg", error=UnreadableError)
    assert message == OUT_OF_MEMORY


# libjpeg, which Pillow and OpenCV contain, reports memory that runs out as a broken file
LIMITED = """
import pathlib, resource, sys
from a2cap.extract.image import _BYTES_PER_PIXEL_OF, read_image

path, megabytes = pathlib.Path(sys.argv[1]), int(sys.argv[2])


def kilobytes(name):  # ru_maxrss begins with that of the parent
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.split(name + ":")[1].split()[0])


before = kilobytes("VmHWM")
if megabytes:
    limit = kilobytes("VmSize") * 1024 + megabytes * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    pixels = read_image(path)
    print(round((kilobytes("VmHWM") - before) * 1024 / (pixels.size / 3), 1))
except Exception as error:
    print(error)
"""


def read_limited(path, megabytes=0):
    """Read an image in a process of its own; return its bytes per pixel, or its error."""
    command = [sys.executable, "-c", LIMITED, str(path), str(megabytes)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.slow
@pytest.mark.parametrize("megabytes", [10, 50, 100])
def test_a_progressive_jpeg_without_memory_is_not_called_damaged(tmp_path, megabytes):
    Image.new("RGB", (5000, 5000), "red").save(tmp_path / "a.jpg", progressive=True)
    assert read_limited(tmp_path / "a.jpg", megabytes) == OUT_OF_MEMORY


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "name", "options"),
    [
        ("RGB", "a.jpg", {}),
        ("RGB", "a.jpg", {"progressive": True}),
        ("CMYK", "a.jpg", {}),
        ("RGB", "a.png", {"compress_level": 1}),
        ("RGBA", "a.png", {"compress_level": 1}),
        ("I;16", "a.png", {"compress_level": 1}),
        ("P", "a.gif", {}),
        ("RGB", "a.tif", {"compression": "tiff_lzw"}),
        ("RGB", "a.webp", {"quality": 1}),
        ("RGB", "a.avif", {"speed": 10}),
        pytest.param("RGB", "a.heic", {"quality": 1}, marks=NEEDS_HEIF),
    ],
)
def test_decoding_takes_no_more_memory_than_documented(tmp_path, mode, name, options):
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    turned = {} if name == "a.gif" else {"exif": exif}
    Image.new(mode, (6000, 4000)).save(tmp_path / name, **options, **turned)
    per_pixel = float(read_limited(tmp_path / name))
    assert 3 < per_pixel < _BYTES_PER_PIXEL_OF.get(Image.registered_extensions()[name[1:]], 9)


PHONES = ["a.avif", pytest.param("a.heic", marks=NEEDS_HEIF)]


@pytest.mark.parametrize("name", PHONES)
@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L"])
@pytest.mark.parametrize("orientation", [1, 3, 6])
def test_photographs_of_phones_are_read_upright(tmp_path, rgb, name, mode, orientation):
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    rgb.convert(mode).save(tmp_path / name, quality=95, exif=exif.tobytes())
    (tmp_path / name).rename(tmp_path / "x.jpg")  # by content, not by the suffix
    expected = ImageOps.exif_transpose(_with_orientation(rgb.convert(mode), orientation))
    pixels = read_image(tmp_path / "x.jpg")
    assert image_size(tmp_path / "x.jpg") == expected.size == pixels.shape[1::-1]
    assert np.abs(pixels[:, :, ::-1].astype(int) - np.asarray(expected.convert("RGB"))).mean() < 4


def _with_orientation(image, orientation):
    content = BytesIO()
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    image.save(content, "PNG", exif=exif)
    return Image.open(content)


@pytest.mark.parametrize("name", PHONES)
def test_a_damaged_or_large_photograph_of_a_phone_is_refused(tmp_path, rgb, name, monkeypatch):
    path = tmp_path / name
    rgb.save(path)
    whole = path.read_bytes()
    for part in (0.3, 0.6, 0.99):
        path.write_bytes(whole[: int(part * len(whole))])
        message = message_of(read_image, path)
        assert message.startswith((f"image {name!r} cannot be", f"image {name!r} is not in a sup"))
    path.write_bytes(whole)
    monkeypatch.setattr("a2cap.data.files.image_file.PIXEL_LIMIT", 1000)
    assert message_of(read_image, path) == (
        f"image {name!r} is too large: 128 x 96 pixels, limit 0 million; scale it down"
    )


@NEEDS_HEIF
@pytest.mark.parametrize("side", [30_000, 60_000, 2**31 - 1])
def test_a_heic_file_that_claims_a_huge_size_is_one_line(tmp_path, rgb, side):
    path = tmp_path / "a.heic"
    rgb.save(path)
    whole = path.read_bytes()
    at = whole.index(b"ispe") + 8
    path.write_bytes(whole[:at] + 2 * side.to_bytes(4) + whole[at + 8 :])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    message = message_of(read_image, path)
    assert message.startswith(
        ("image 'a.heic' is too large: ", "image 'a.heic' cannot be decoded: ")
    )
    assert "\n" not in message
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KB


@pytest.mark.parametrize("read", [read_image, image_size])
def test_the_package_that_heic_needs_is_named(tmp_path, monkeypatch, read):
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    (tmp_path / "a.jpg").write_bytes(b"\0\0\0\x1cftypmif1\0\0\0\0mif1heic")
    assert message_of(read, tmp_path / "a.jpg") == (
        "image 'a.jpg' is HEIC, which needs pillow-heif; install it with "
        'pip install "a2cap[heic]", or save the image as JPEG'
    )


@pytest.mark.parametrize("read", [read_image, image_size])
def test_only_regular_files_are_read(tmp_path, read):
    os.mkfifo(tmp_path / "fifo.jpg")  # reading it would wait for ever
    (tmp_path / "zero.jpg").symlink_to("/dev/zero")
    (tmp_path / "folder.jpg").mkdir()
    for path in tmp_path.iterdir():
        assert message_of(read, path) == f"not a regular file: {str(path)!r}; name a file"


def test_a_large_file_is_read_only_with_the_header_of_an_image(tmp_path, monkeypatch):
    path = tmp_path / "a.tif"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    assert message_of(read_image, path) == (
        "image 'a.tif' is too large: 1024.0 GiB, limit 1 GiB; scale it down, or save it as JPEG"
    )
    with path.open("r+b") as file:
        file.truncate(1 << 30)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert message_of(read_image, path) == (
        "image 'a.tif' is not in a supported format: it is of an unknown kind (00 00 00 00); "
        f"get the file again, as {FORMATS}"
    )
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KB
    Image.new("1", (40, 40)).save(path)
    monkeypatch.setattr("a2cap.data.files.image_file._READ_AT_ONCE", 100)
    assert read_image(path).shape == (40, 40, 3)
    monkeypatch.setattr("a2cap.data.files.image_file.PIXEL_LIMIT", 1000)
    assert message_of(read_image, path) == (
        "image 'a.tif' is too large: 40 x 40 pixels, limit 0 million; scale it down"
    )


@pytest.mark.parametrize(
    ("limit", "pixels", "message"),
    [
        (
            "a2cap.data.files.image_file.PIXEL_LIMIT",
            1_000_000,
            "2000 x 1000 pixels, limit 1 million",
        ),
        ("PIL.Image.MAX_IMAGE_PIXELS", 900_000, "more than 100 million pixels"),
    ],
)
def test_a_header_above_a_limit_is_refused_before_decoding(
    tmp_path, monkeypatch, limit, pixels, message
):
    monkeypatch.setattr(limit, pixels)
    Image.new("1", (2000, 1000)).save(tmp_path / "a.png")
    with pytest.raises(InputError, match=f"image 'a.png' is too large: {message}; scale it down"):
        read_image(tmp_path / "a.png")


def test_an_image_between_the_limits_of_pillow_is_read_without_a_warning(tmp_path, monkeypatch):
    Image.new("L", (40, 40)).save(tmp_path / "a.tif", compression="tiff_lzw")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with warnings.catch_warnings(record=True) as caught:
        assert read_image(tmp_path / "a.tif").shape == (40, 40, 3)
    assert caught == []
