import os
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np
import pytest
import torch

from a2cap.data.errors import WeightsError
from a2cap.extract.weights.load import load_detector
from a2cap.extract.weights.torch_files import _NUMPY, load_torch_file

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
def test_an_rng_state_beside_the_tensors_is_read_over(tmp_path, archive):
    content = {"state_dict": {"w": torch.tensor([1.5])}, "numpy": np.random.get_state()}
    tensors = load_torch_file(save(content, tmp_path / "a.pth", archive=archive))
    assert list(tensors) == ["w"]


def test_permitted_names_are_those_of_stand_ins_as_torch_2_5_reads_them():
    assert {f"{one.__module__}.{one.__name__}" for one in _NUMPY} == {
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
        with pytest.raises(WeightsError) as error:
            load(path)
        assert str(error.value) == (
            "torch file 'a.pth' is unsafe: it refers to 'posix.mkdir', and nothing of it was run; "
            "do not use this file"
        )
    assert not (tmp_path / "ran").exists()


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
    with pytest.raises(WeightsError) as error:
        load_torch_file(tmp_path / "a.pth")
    assert str(error.value) == (
        f"torch file 'a.pth' is damaged: it expands to {expanded:,} bytes from {size:,}; "
        "download it again"
    )


@TWO_FORMS
def test_tensors_that_claim_more_than_the_file_are_refused(tmp_path, archive):
    few = torch.ones(1, dtype=torch.float16).expand(1_000_000_000)  # 2 GB, of strides 0
    path = save({"w": few}, tmp_path / "a.pth", archive=archive)
    with pytest.raises(WeightsError) as error:
        load_torch_file(path)
    assert str(error.value) == (
        "torch file 'a.pth' is damaged: its tensors claim 2,000,000,000 bytes, the file has "
        f"{path.stat().st_size:,}; download it again"
    )
