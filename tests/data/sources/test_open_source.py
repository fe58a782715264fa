import pytest

from a2cap.data.sources.open_source import open_source
from tests.data.sources.samples import jpeg, tar_bytes, write_parquet

IMAGES = {f"{number:09}.jpg": jpeg(number) for number in range(4)}
IDS = [f"{number:012}" for number in range(4)]


@pytest.fixture(params=["list", "tar", "glob", "parquet", "bytes", "memory"])
def text(request, tmp_path):
    """Name the four images in every form."""
    kind = request.param
    names = sorted(IMAGES)
    if kind == "list":
        for name in names:
            (tmp_path / name).write_bytes(IMAGES[name])
        (tmp_path / "images.txt").write_text("\n".join(names) + "\n")
        return str(tmp_path / "images.txt")
    halves = [{name: IMAGES[name] for name in names[i : i + 2]} for i in (0, 2)]
    if kind in ("tar", "glob"):
        for number, half in enumerate(halves):
            (tmp_path / f"shard-{number:03}.tar").write_bytes(tar_bytes(half))
        return str(tmp_path / ("shard-{000..001}.tar" if kind == "tar" else "shard-*.tar"))
    if kind == "memory":
        request.getfixturevalue("memory").pipe(
            {f"/sources/s-{n}.tar": tar_bytes(half) for n, half in enumerate(halves)}
        )
        return "memory://sources/s-{0..1}.tar"
    pytest.importorskip("pyarrow")
    path = tmp_path / "train.parquet"
    if kind == "parquet":
        write_parquet(path, image=[{"bytes": IMAGES[name], "path": name} for name in names])
    else:
        write_parquet(path, key=[name[:-4] for name in names], jpg=[IMAGES[n] for n in names])
    return str(path)


def test_every_form_gives_the_same_images_in_the_same_order(text):
    source = open_source(text)
    items = list(source.items())
    assert [item.image_id for item in items] == IDS
    assert [content for _, content in source.read(items)] == [IMAGES[n] for n in sorted(IMAGES)]
    some = [items[3], items[1]] if text.endswith(".txt") else [items[1], items[3]]
    assert list(open_source(text).read(some)) == [
        (item, IMAGES[f"{item.image_id[3:]}.jpg"]) for item in some
    ]
