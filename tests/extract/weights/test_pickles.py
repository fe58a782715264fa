import codecs
import os
import pickle
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch

from a2cap.data.errors import WeightsError
from a2cap.extract.weights.pickles import load_arrays, load_pickle


def pickle_to(path, content):
    path.write_bytes(pickle.dumps(content, protocol=2))
    return path


def test_arrays_become_float32_tensors_by_name(tmp_path):
    path = pickle_to(
        tmp_path / "a.pkl", {"model": {"w": np.array([1.5, 2]), "b": np.array([3], np.float32)}}
    )
    tensors = load_pickle(path)
    assert {key: tensor.tolist() for key, tensor in tensors.items()} == {"w": [1.5, 2], "b": [3]}
    assert all(tensor.dtype == torch.float32 for tensor in tensors.values())


def test_counters_are_left_out(tmp_path):
    model = {"backbone.stem.conv1.norm.num_batches_tracked": np.array(1)}
    assert load_pickle(pickle_to(tmp_path / "a.pkl", {"model": model})) == {}


@pytest.mark.parametrize("content", [{"weights": {}}, {"model": [1]}, [1, 2], "text"])
def test_a_pickle_without_a_model_is_refused(tmp_path, content):
    message = (
        "pickle 'a.pkl' has no 'model' of arrays by name; "
        "name a .pkl of airsplay or detectron2, or a safetensors file"
    )
    with pytest.raises(WeightsError, match=message):
        load_pickle(pickle_to(tmp_path / "a.pkl", content))


@pytest.mark.parametrize(("value", "kind"), [(np.arange(3), "int64"), ([0.5], "list")])
def test_what_is_no_array_of_floats_is_refused(tmp_path, value, kind):
    message = f"'w' in 'a.pkl' is {kind}, not an array of floats; download the file again"
    with pytest.raises(WeightsError, match=message):
        load_pickle(pickle_to(tmp_path / "a.pkl", {"model": {"w": value}}))


class Call:
    """Pickles to a call of function with arguments."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, 3, 4])
def test_arrays_come_back_equal(tmp_path, protocol):
    arrays: dict[str, Any] = OrderedDict(
        a=np.arange(6, dtype=np.float32).reshape(2, 3), b=np.array([0.5])
    )
    path = tmp_path / "a.pkl"
    path.write_bytes(pickle.dumps({"model": arrays, "matching": True}, protocol=protocol))
    loaded: Any = load_arrays(path)
    assert loaded["matching"] is True
    for key, array in arrays.items():
        assert loaded["model"][key].dtype == array.dtype
        assert np.array_equal(loaded["model"][key], array)


@pytest.mark.parametrize("module", ["numpy.core.multiarray", "numpy._core.multiarray"])
def test_arrays_of_old_and_new_numpy_are_read(tmp_path, module):
    pickled = pickle.dumps(np.ones(3, np.float32), protocol=2)
    old, new = b"numpy.core.multiarray", b"numpy._core.multiarray"
    pickled = pickled.replace(new, old).replace(old, module.encode())
    (tmp_path / "a.pkl").write_bytes(pickled)
    loaded: Any = load_arrays(tmp_path / "a.pkl")
    assert loaded.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("call", "name"),
    [
        ((os.mkdir, "ran"), "posix.mkdir"),
        ((eval, "open('ran', 'w')"), "builtins.eval"),
        ((getattr, "", "join"), "builtins.getattr"),
        ((np.load, "ran"), "numpy.load"),
        ((codecs.lookup, "rot13"), "_codecs.lookup"),
    ],
)
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_that_wants_to_run_something_is_refused_and_nothing_runs(
    tmp_path, monkeypatch, call, name, protocol
):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "evil.pkl"
    path.write_bytes(pickle.dumps({"model": Call(*call)}, protocol=protocol))
    with pytest.raises(WeightsError) as error:
        load_arrays(path)
    assert str(error.value).replace("__builtin__", "builtins") == (
        f"pickle 'evil.pkl' wants to run '{name}', which is no numpy array; "
        "nothing of it was run, do not use this file"
    )
    assert [entry.name for entry in tmp_path.iterdir()] == ["evil.pkl"]


def test_only_latin1_is_decoded(tmp_path):
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(Call(codecs.encode, "a", "rot13"), protocol=2))
    with pytest.raises(WeightsError, match=r"pickle 'a.pkl' is damaged: codec 'rot13'; download"):
        load_arrays(tmp_path / "a.pkl")


@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.99])
def test_a_truncated_pickle_is_refused(tmp_path, part):
    pickled = pickle.dumps({"model": {"a": np.ones(1000)}}, protocol=2)
    (tmp_path / "a.pkl").write_bytes(pickled[: int(part * len(pickled))])
    with pytest.raises(WeightsError, match=r"pickle 'a.pkl' is damaged: .*; download it again"):
        load_arrays(tmp_path / "a.pkl")


def test_an_array_that_claims_too_much_memory_is_refused(tmp_path):
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(Call(np.ndarray, (2**60,), "f8")))
    with pytest.raises(WeightsError, match=r"pickle 'a.pkl' is damaged"):
        load_arrays(tmp_path / "a.pkl")
