import codecs
import os
import pickle
import tarfile
from collections import Counter, OrderedDict
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np
import pytest
import torch

from a2cap.data.errors import WeightsError
from a2cap.data.files import pickles
from a2cap.extract.weights.load import load_detector
from a2cap.extract.weights.torch_files import _NUMPY, load_torch_file
from tests.extract.tiny import refusal
from tests.extract.weights.test_pickles import Call

TWO_FORMS = pytest.mark.parametrize("archive", [True, False], ids=["archive", "before torch 1.6"])


def save(content, path, *, archive=True):
    torch.save(content, path, _use_new_zipfile_serialization=archive)
    return path


@TWO_FORMS
def test_a_state_dict_is_read_at_the_top_or_below_model(tmp_path, archive):
    state = {"w": torch.tensor([1.5], dtype=torch.float16)}
    for content in (state, {"model": state, "iteration": 7}):
        tensors = load_torch_file(save(content, tmp_path / "a.pth", archive=archive))
        assert tensors["w"].tolist() == [1.5]
        assert tensors["w"].dtype == torch.float32


@TWO_FORMS
def test_the_state_of_a_training_beside_the_tensors_is_read_over(tmp_path, archive):
    weight = torch.tensor([1.5])
    content = {
        "state_dict": OrderedDict(w=weight, p=torch.nn.Parameter(weight)),
        "optimizer": {"state": {0: {"step": weight}}, "param_groups": [{"params": [0]}]},
        "scheduler": {"milestones": Counter([30, 30])},
        "best": np.float64(1.5),
        "classes": np.array(["dog", "cat"], dtype=object),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
        "size": torch.Size([1]),
        "device": torch.device("cpu"),
        "dtypes": [torch.float16, torch.zeros(1, dtype=torch.uint16)],
    }
    if not archive:
        del content["dtypes"]  # which this form cannot contain
    tensors = load_torch_file(save(content, tmp_path / "a.pth", archive=archive))
    assert list(tensors) == ["w", "p"]


def test_permitted_names_are_those_of_stand_ins_as_torch_2_5_reads_them():
    assert {f"{function.__module__}.{function.__name__}" for function in _NUMPY} == {
        "numpy.ndarray",
        "numpy.dtype",
        *(
            f"numpy.{core}.multiarray.{name}"
            for core in ("core", "_core")
            for name in ("_reconstruct", "scalar")
        ),
    }


@TWO_FORMS
def test_a_malicious_file_is_refused_and_nothing_runs(tmp_path, archive):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    path = save({"model": Evil()}, tmp_path / "a.pth", archive=archive)
    for load in (load_torch_file, load_detector):
        assert refusal(load, path) == (
            "torch file 'a.pth' is unsafe: it refers to 'posix.mkdir', and nothing of it was run; "
            "do not use this file"
        )
    assert not (tmp_path / "ran").exists()


def nested(depth):
    value: object = ()
    for _ in range(depth):
        value = (value, value)
    return value


def repeated(function, *arguments, state=None):
    return [Call(function, *arguments, state=state) for _ in range(40)]


FIELDS = {str(number): number for number in range(1000)}
COPIES = "its copies are larger than the file"


@TWO_FORMS
@pytest.mark.parametrize(
    ("forged", "reason"),
    [
        (repeated(codecs.encode, "x" * 4000, "latin1"), COPIES),
        (repeated(OrderedDict, [[key, key] for key in FIELDS]), COPIES),
        (repeated(Counter, FIELDS), COPIES),
        (repeated(OrderedDict, state=FIELDS), COPIES),
        (repeated(torch.Size, (0,) * 4000), COPIES),
        (Call(OrderedDict, [[nested(100), 1]]), "str expected, not tuple"),  # 2^100 steps
        ({2**61 - 1: 0, 2**62 - 2: 0}, "str expected, not int"),  # one hash for all multiples
        (Call(torch.device, "cpu", state={}), "the state of an array or dtype is unknown"),
        ([0] * 1000, "it has more than 500 opcodes"),
    ],
)
def test_a_pickle_that_takes_more_than_its_size_is_refused_before_torch_reads_it(
    tmp_path, monkeypatch, archive, forged, reason
):
    monkeypatch.setattr(pickles, "_MOST_OPCODES", 500 if "opcodes" in reason else 10**6)
    monkeypatch.setattr(torch, "load", None)
    path = save({"m": forged}, tmp_path / "a.pth", archive=archive)
    message = refusal(load_torch_file, path)
    assert message == f"torch file 'a.pth' is damaged: {reason}; download it again"


@TWO_FORMS
def test_calls_that_torch_permits_and_weights_do_not_need_are_refused(tmp_path, archive):
    path = save({"m": Call(bytearray, 2**20)}, tmp_path / "a.pth", archive=archive)  # or 2^40
    with pytest.raises(WeightsError, match=r"unsafe: it refers to '__builtin__\.bytearray'"):
        load_torch_file(path)


def rewrite(path, content):
    """Write the files of an archive with the contents that a function of both returns."""
    with ZipFile(path) as archive:
        files = [(name, archive.read(name)) for name in archive.namelist()]
    with ZipFile(path, "w") as archive:
        for name, original in files:
            archive.writestr(name, content(name, original))


def test_storages_that_state_more_than_they_have_are_refused(tmp_path, monkeypatch):
    path = save({"w": torch.arange(7.0)}, tmp_path / "a.pth")
    rewrite(path, lambda name, original: original.replace(b"K\x07tq", b"K\x09tq"))
    monkeypatch.setattr(torch, "load", None)  # which reads beyond the end before version 2.10
    with pytest.raises(WeightsError, match="is damaged: a storage of 36 bytes has 28; download"):
        load_torch_file(path)


def test_an_archive_with_two_files_of_one_name_is_refused(tmp_path):
    path = save({"w": torch.zeros(1)}, tmp_path / "a.pth")
    with ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("a/data.pkl", b"")
    with pytest.raises(WeightsError, match="is damaged: it has two files of one name; download"):
        load_torch_file(path)


def test_a_tar_archive_is_refused(tmp_path):
    name = b"".join(pickle.dumps(part, protocol=2) for part in ({}, {}, {}, {}, []))
    with tarfile.open(tmp_path / "a.pth", "w") as archive:
        archive.addfile(tarfile.TarInfo(name.decode("utf-8", "surrogateescape")))
    with pytest.raises(WeightsError, match="is damaged: it is a tar archive; download it again"):
        load_torch_file(tmp_path / "a.pth")


@TWO_FORMS
@pytest.mark.parametrize("part", [0.1, 0.9])
def test_a_truncated_file_is_damaged(tmp_path, archive, part):
    path = save({"w": torch.zeros(1000)}, tmp_path / "a.pth", archive=archive)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(part * len(whole))])
    with pytest.raises(
        WeightsError, match=r"^torch file 'a\.pth' is damaged: .*; download it again$"
    ):
        load_torch_file(path)


@pytest.mark.parametrize("content", [[1], {"model": [1]}, {"epoch": 3}, torch.zeros(1)])
def test_a_file_without_tensors_by_name_is_refused(tmp_path, content):
    message = "torch file 'a.pth' has no tensors by name; name a file with a state dict"
    with pytest.raises(WeightsError, match=message):
        load_torch_file(save(content, tmp_path / "a.pth"))


def test_an_archive_that_expands_beyond_its_size_is_refused_before_it_is_read(tmp_path):
    plain = save({"w": torch.zeros(100_000)}, tmp_path / "plain.pth")
    with ZipFile(plain) as stored, ZipFile(tmp_path / "a.pth", "w", ZIP_DEFLATED) as packed:
        for member in stored.namelist():
            packed.writestr(member, stored.read(member))
        expanded = sum(member.file_size for member in stored.infolist())
    size = (tmp_path / "a.pth").stat().st_size
    assert refusal(load_torch_file, tmp_path / "a.pth") == (
        f"torch file 'a.pth' is damaged: it expands to {expanded:,} bytes from {size:,}; "
        "download it again"
    )


@TWO_FORMS
def test_tensors_that_claim_more_than_the_file_are_refused(tmp_path, archive):
    few = torch.ones(1, dtype=torch.float16).expand(1_000_000_000)  # 2 GB, of strides 0
    path = save({"w": few}, tmp_path / "a.pth", archive=archive)
    assert refusal(load_torch_file, path) == (
        "torch file 'a.pth' is damaged: its tensors claim 2,000,000,000 bytes, the file has "
        f"{path.stat().st_size:,}; download it again"
    )
