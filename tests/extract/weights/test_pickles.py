import pickle

import numpy as np
import pytest
import torch

from a2cap.data.errors import WeightsError
from a2cap.extract.weights.pickles import load_pickle


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
