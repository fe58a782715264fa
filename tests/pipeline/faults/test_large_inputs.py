"""Oversized inputs are refused because of their headers, without time or memory."""

import subprocess
import sys
import textwrap
import zlib

import pytest

from a2cap.data.errors import InputError
from a2cap.extract.image import read_image


def chunk(kind, content):
    body = kind + content
    return len(content).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")


def write_bomb(path, side):
    """Write a square black PNG of one bit per pixel: 112 MB of rows in a few kilobytes."""
    row = bytes(1 + (side + 7) // 8)
    pack = zlib.compressobj(9)
    rows = b"".join([pack.compress(row * 100) for _ in range(side // 100)] + [pack.flush()])
    header = side.to_bytes(4, "big") * 2 + bytes([1, 0, 0, 0, 0])
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + parts)


READ = """
    import resource, sys, time
    from pathlib import Path
    from a2cap.data.errors import InputError
    from a2cap.extract.image import read_image

    gigabyte = 2**30
    resource.setrlimit(resource.RLIMIT_AS, (4 * gigabyte, 4 * gigabyte))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.process_time()  # whatever else the machine does
    try:
        read_image(Path(sys.argv[1]))
    except InputError as error:
        print(error)
    print(time.process_time() - started)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
def test_an_image_of_30000_by_30000_pixels_in_109_kilobytes_costs_little(tmp_path):
    bomb = tmp_path / "bomb.png"
    write_bomb(bomb, 30_000)
    assert 100_000 < bomb.stat().st_size < 120_000
    command = [sys.executable, "-c", textwrap.dedent(READ), str(bomb)]
    read = subprocess.run(command, capture_output=True, text=True, check=True)
    message, seconds, kilobytes = read.stdout.splitlines()
    assert message == "image 'bomb.png' is too large: more than 100 million pixels; scale it down"
    assert float(seconds) < 2  # OpenCV needs 32
    assert int(kilobytes) < 100_000  # and 5.2 GB


def test_a_smaller_image_of_the_same_kind_is_read(tmp_path):
    write_bomb(tmp_path / "small.png", 300)
    assert read_image(tmp_path / "small.png").shape == (300, 300, 3)
    write_bomb(tmp_path / "large.png", 10_100)
    with pytest.raises(InputError, match="10100 x 10100 pixels, limit 100 million; scale it down"):
        read_image(tmp_path / "large.png")
