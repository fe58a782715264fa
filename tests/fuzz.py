"""Damaged and hostile files for everything that a2 reads.

python -m tests.fuzz tars --count 2000 --seed 0

Each input is a mutation of a good file. Reading it has to return, or to end in an A2Error, within
five seconds of computing and 2 GB; the first input that does neither is kept and named.
"""

import gzip
import json
import logging
import pickle
import random
import resource
import signal
import sys
import tempfile
import traceback
import warnings
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import lmdb
import numpy as np
import torch

from a2cap.data.annotations.instances import read_instances
from a2cap.data.annotations.read import read_annotations
from a2cap.data.errors import A2Error, UnreadableError
from a2cap.data.features.formats.feature_source import ReadHints
from a2cap.data.features.store import FeatureStore
from a2cap.data.sources.http import HttpFiles
from a2cap.data.sources.open_source import open_source
from a2cap.extract.weights.load import load_detector, save_detector
from a2cap.extract.weights.torch_files import load_torch_file
from a2cap.pipeline.captioning.published import convert_captioner
from a2cap.pipeline.configuration import Config, load_config
from a2cap.pipeline.extraction import convert
from a2cap.pipeline.extraction.open_features import open_features
from tests.data.annotations.documents import GOOD, karpathy
from tests.data.features.stores import write_store
from tests.data.sources.samples import jpeg, tar_bytes, write_arrow, write_parquet
from tests.extract.tiny import TINY
from tests.extract.weights.test_checkpoint_layouts import write_airsplay, write_caffemodel
from tests.pipeline.captioning.test_published import M2_WORDS, m2_tensors, vocabulary_file
from tests.random_detector import random_detector

SECONDS, BYTES = 5, 2 << 30
ANY = "random(1/0/0, 1)"

TOKENS = [
    *(b"null", b"true", b"-1", b"1e999", b"NaN", b"0x7fffffffffffffff", b"9" * 5000, b"[" * 3000),
    *(b"{}", b"[]", b'"', b"\\ud800", b"\0", b"\xff\xfe", b"\r", b"\n", b"\t", b"../", b"/", b"::"),
    *(
        b"s3://",
        b"file:///",
        b"{0..99999999}",
        b"=1+1",
        b"!!python/object",
        b"&a [*a]",
        b"x" * 9999,
    ),
]


class TooSlowError(BaseException):
    """Reading that takes too long; no `except Exception` stops it."""


@dataclass
class Target:
    """Something that reads files: good ones by name, and the function that reads one."""

    files: dict[str, bytes]
    read: Callable[[Path], object]


VALUES: list[Any] = [
    None,
    True,
    -1,
    1e300,
    10**30,
    "",
    "x" * 20_000,
    "../x",
    "\ud800",
    [],
    {},
    [[[]]],
    [1, "a"],
]


def changed_document(content: bytes, generator: random.Random) -> bytes:
    """Return a JSON document of which some values are others, missing or repeated."""
    document = json.loads(content)
    for _ in range(generator.choice((1, 1, 2, 4))):
        node = document
        while isinstance(node, dict | list) and node:
            key = generator.choice(list(node) if isinstance(node, dict) else range(len(node)))
            if generator.random() < 0.3 or not isinstance(node[key], dict | list):
                match generator.randrange(3):
                    case 0:
                        del node[key]
                    case 1 if isinstance(node, list):
                        node.append(deepcopy(node[key]))
                    case _:
                        node[key] = deepcopy(generator.choice(VALUES))
                break
            node = node[key]
    return json.dumps(document).encode()


def mutated(content: bytes, others: list[bytes], generator: random.Random) -> bytes:
    """Return a damaged copy: changed, lost, repeated and foreign bytes, or its beginning."""
    if content.startswith(b"{") and generator.random() < 0.6:
        return changed_document(content, generator)
    changed = bytearray(content)
    for _ in range(generator.choice((1, 1, 2, 3, 8))):
        # the beginning of a file has most of its structure
        end = max(1, generator.choice((len(changed), min(len(changed), 600))))
        start = generator.randrange(end)
        match generator.randrange(7):
            case 0:
                changed[start : start + 1] = generator.randbytes(1)
            case 1 if start < len(changed):
                changed[start] ^= 1 << generator.randrange(8)
            case 2:
                del changed[start : start + generator.choice((1, 4, 100, 5000))]
            case 3:
                other = generator.choice(others)
                position = generator.randrange(len(other))
                changed[start:start] = other[position : position + generator.choice((4, 40, 900))]
            case 4:
                changed[start : start + generator.choice((0, 1, 8))] = generator.choice(TOKENS)
            case 5:
                del changed[start:]
            case 6:
                size = generator.choice((1, 2, 4, 8))
                changed[start : start + size] = generator.choice((b"\0", b"\xff", b"\x7f")) * size
    return bytes(changed)


def consumed(items: Iterable[object]) -> None:
    for _ in items:
        pass


def read_captions(path: Path) -> None:
    """Read annotations, which name their splits or get random ones."""
    read_annotations(path, split=None if path.name.startswith("split-") else ANY)


def configurations(folder: Path) -> Target:
    """Return configurations, whole and shipped."""
    files = {path.name: path.read_bytes() for path in Path("configs").glob("*.yaml")}
    return Target({**files, "whole.yaml": Config().to_yaml().encode()}, load_config)


def annotations(folder: Path) -> Target:
    """Return Karpathy's and COCO's files, and those of boxes."""
    images = [{"id": n, "file_name": f"{n}.jpg", "width": 9, "height": 9} for n in range(3)]
    texts = [{"id": n, "image_id": n, "caption": "a dog"} for n in range(3)]
    boxes = [{"id": n, "image_id": n, "bbox": [1, 2, 3, 4], "category_id": 1} for n in range(3)]
    categories = [{"id": 1, "name": "dog"}]
    line = {"image": "a.jpg", "captions": ["a dog"], "split": "train"}
    documents = {
        "split-karpathy.json": {"images": [GOOD, karpathy()], "dataset": "coco"},
        "coco.json": {"images": images, "annotations": texts},
        "boxes.json": {"images": images, "annotations": boxes, "categories": categories},
        "split-textcaps.json": {
            "data": [{"image_id": "a", "caption_str": "a dog", "set_name": "val"}]
        },
        "split-captions.jsonl": line,
    }

    def read(path: Path) -> None:
        if "boxes" in path.name:
            read_instances(path)
        else:
            read_captions(path)

    return Target({name: json.dumps(d).encode() for name, d in documents.items()}, read)


def captions(folder: Path) -> Target:
    """Return tables and token files."""
    csv = b'image,caption,split\na.jpg,"A dog, running.",train\nb.jpg,A cat,val\n'
    files = {
        "split-a.csv": csv,
        "split-b.tsv": csv.replace(b",", b"\t"),
        "c.csv": b"image_name| comment_number| comment\na.jpg| 0| A dog.\nb.jpg| 0| A cat\n",
        "d.token": b"a.jpg#0\tA dog, running.\nb.jpg#0\tA cat\na.jpg#1\tTwo dogs\n",
    }
    return Target(files, read_captions)


def features(folder: Path) -> Target:
    """Return region features in the formats that `a2 convert` reads."""
    write_store(folder / "store", ["000000000001", "000000000002"])
    files = {}
    for form in ("caffe", "lxmert", "m2", "milvlg"):
        convert.convert(folder / "store", folder / form, form=form)
        written = folder / form
        first = min(written.iterdir()) if written.is_dir() else written
        files[f"{form}.{'npz' if written.is_dir() else form}"] = first.read_bytes()
    regions = FeatureStore(folder / "store")["000000000001"]
    arrays = {"features": regions.features.astype("f4"), "boxes": regions.boxes, "num_boxes": 3}
    info = {"bbox": regions.boxes, "num_boxes": np.int64(len(regions)), "image_width": 640}
    np.save(folder / "a.npy", np.array(info, dtype=object))
    torch.save({"1": {k: torch.as_tensor(v) for k, v in arrays.items()}}, folder / "b.pth")
    files |= {"a_info.npy": (folder / "a.npy").read_bytes(), "c.pkl": pickle.dumps({"1": arrays})}
    files |= {"b.pth": (folder / "b.pth").read_bytes(), "d.gz": gzip.compress(files["caffe.caffe"])}
    with lmdb.open(str(folder / "lmdb")) as environment, environment.begin(write=True) as to:
        to.put(b"1", pickle.dumps(arrays))
    files["e.mdb"] = (folder / "lmdb" / "data.mdb").read_bytes()[: 8 << 12]
    sizes = {f"{number:012}": (640, 480) for number in (1, 2)}

    def read(path: Path) -> None:
        # files of npz are read by folder
        source = path.parent if path.suffix in (".npz", ".npy") else path
        if path.suffix == ".npy":
            np.save(path.with_name("a.npy"), regions.features)
        consumed(open_features(source, ReadHints(sizes.get)))

    return Target(files, read)


def stores(folder: Path) -> Target:
    """Return the files of a feature store."""
    write_store(folder / "store", [f"{number:012}" for number in range(40)])
    files = {path.name: path.read_bytes() for path in (folder / "store").iterdir()}

    def read(path: Path) -> None:
        # in a folder of its own: LMDB opens no path twice in a process
        with tempfile.TemporaryDirectory(dir=folder) as copy:
            for name, content in (files | {path.name: path.read_bytes()}).items():
                (Path(copy) / name).write_bytes(content)
            store = FeatureStore(Path(copy))
            consumed(map(store.__getitem__, store))

    return Target(files, read)


def read_images(path: Path) -> None:
    """List a source, and read its images."""
    source = open_source(str(path))
    consumed(source.read(list(source.items())))
    if path.suffix != ".txt":
        read_annotations(path, split=ANY)


def tars(folder: Path) -> Target:
    """Return tars of images and captions."""
    members = {"a.jpg": jpeg(1), "a.txt": b"a dog", "b.jpg": jpeg(2), "b.json": b'{"caption": "x"}'}
    longer = {f"{'x' * 150}/{name}": content for name, content in members.items()}
    return Target({"a.tar": tar_bytes(members), "b.tar": tar_bytes(longer)}, read_images)


def parquet(folder: Path) -> Target:
    """Return Parquet and Arrow files of images and captions."""
    rows = [{"bytes": jpeg(n), "path": f"{n}.jpg"} for n in range(4)]
    write_parquet(folder / "a.parquet", image=rows, caption=["a dog"] * 4)
    names = ["a", "b", None]
    write_parquet(folder / "b.parquet", jpg=[jpeg(1)] * 3, key=names, text=["a", "b", "c"])
    write_arrow(folder / "c.arrow", image=rows, caption=["a dog"] * 4)
    files = {name: (folder / name).read_bytes() for name in ("a.parquet", "b.parquet", "c.arrow")}
    return Target(files, read_images)


def lists(folder: Path) -> Target:
    """Return lists of images."""
    lines = [
        b"a.jpg",
        b"x/b.jpg",
        b"http://127.0.0.1:9/a.jpg",
        b"s3://b/a.jpg",
        b"file:///etc/passwd",
    ]
    return Target({"a.txt": b"\n".join(lines), "b.txt": b"a.jpg\r\n/etc/hostname\r\n"}, read_images)


def weights(folder: Path) -> Target:
    """Return a detector in three forms of files, and a published captioner in two."""
    images = [np.full((96, 128, 3), shade, np.uint8) for shade in (50, 200)]
    detector = random_detector(images, TINY, min_side=96, max_side=96, roi_size=7)
    save_detector(detector, folder / "a.safetensors")
    write_airsplay(detector.state_dict(), folder / "b.pkl")
    write_caffemodel(detector.state_dict(), folder / "c.caffemodel")
    vocabulary = vocabulary_file(folder, M2_WORDS)
    torch.save({"state_dict": m2_tensors()}, folder / "d.pth")
    torch.save(m2_tensors(), folder / "e.pth", _use_new_zipfile_serialization=False)

    def read(path: Path) -> None:
        if path.suffix == ".pth":
            convert_captioner(load_torch_file(path), vocabulary)
        else:
            load_detector(path)

    names = ["a.safetensors", "b.pkl", "c.caffemodel", "d.pth", "e.pth"]
    return Target({name: (folder / name).read_bytes() for name in names}, read)


TARGETS = {
    target.__name__: target
    for target in (
        *(configurations, annotations, captions, features, stores),
        *(tars, parquet, lists, weights),
    )
}


def refuse_network(*_arguments: object) -> None:
    """Take the place of requests: no input reaches the network."""
    raise UnreadableError("no network; this is a fuzz test")


def run(name: str, *, count: int, seed: int, folder: Path) -> Counter[str]:
    """Read mutated files; return how many ended in which way. Raises what reading raised."""
    target = TARGETS[name](folder)
    generator = random.Random(f"{name} {seed}")
    others = list(target.files.values())
    inputs = folder / "inputs"
    inputs.mkdir()
    outcomes: Counter[str] = Counter()
    for number in range(count):
        file, content = generator.choice(list(target.files.items()))
        path = inputs / file
        path.write_bytes(mutated(content, others, generator))
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            target.read(path)
            outcomes["read"] += 1
        except A2Error as error:
            outcomes["refused"] += 1
            if "\n" in str(error).strip() and name != "configurations":
                raise AssertionError(f"a message of several lines: {error}") from error
        except BaseException:
            kept = Path(tempfile.gettempdir()) / f"fuzz-{name}-{seed}-{number}-{file}"
            path.rename(kept)
            print(f"input {number} of seed {seed} is kept as {kept}")
            raise
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        path.unlink()
    return outcomes


def limit() -> None:
    """Allow this process so much more memory, and so much computing per input."""

    def stop(*_arguments: object) -> None:
        raise TooSlowError(f"more than {SECONDS} s")

    signal.signal(signal.SIGPROF, stop)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def main(words: Sequence[str] | None = None) -> int:
    """Fuzz one kind of file; return 1 at the first input that is neither read nor refused."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=TARGETS)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(words)
    mock.patch.object(HttpFiles, "_answer", refuse_network).start()
    logging.disable()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        limit()
        try:
            print(json.dumps(run(**vars(arguments), folder=Path(folder))))
        except BaseException:
            traceback.print_exc()
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
