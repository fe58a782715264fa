import codecs
import os
import pickle
from collections import Counter, OrderedDict
from typing import Any

import numpy as np
import pytest
import torch

from a2cap.data.errors import WeightsError
from a2cap.extract.weights.load import load_detector
from a2cap.extract.weights.pickles import load_arrays, load_pickle
from tests.extract.tiny import refusal

RECONSTRUCT: Any = np.empty(0).__reduce__()[0]
FROM_BUFFER: Any = np.empty(0).__reduce_ex__(5)[0]


class Call:
    """Pickles to a call of a function with arguments, and a state for its result."""

    def __init__(self, function, *arguments, state=None):
        self.reduced = (function, arguments, state)

    def __reduce__(self):
        return self.reduced


@pytest.fixture
def write(tmp_path):
    def to_file(content, protocol=2):
        data = content if isinstance(content, bytes) else pickle.dumps(content, protocol=protocol)
        (tmp_path / "a.pkl").write_bytes(data)
        return tmp_path / "a.pkl"

    return to_file


def dtype(code="f4", state=(3, "<", None, None, None, -1, -1, 0)):
    return Call(np.dtype, code, False, True, state=state)


def array(shape=(2,), kind=None, content: Any = bytes(8), version=1):
    state = (version, shape, dtype() if kind is None else kind, False, content)
    return Call(RECONSTRUCT, np.ndarray, (0,), b"b", state=state)


def test_arrays_become_float32_tensors_by_name(write):
    model = {"w": np.array([1.5, 2]), "b": np.array([3], np.float32), "h": np.ones(1, np.float16)}
    model["backbone.stem.conv1.norm.num_batches_tracked"] = np.array(1)  # a counter, dropped
    tensors = load_pickle(write({"model": model}))
    assert {key: t.tolist() for key, t in tensors.items()} == {"w": [1.5, 2], "b": [3], "h": [1]}
    assert all(tensor.dtype == torch.float32 for tensor in tensors.values())


@pytest.mark.parametrize("content", [{"weights": {}}, {"model": [1]}, [1, 2], "text"])
def test_a_pickle_without_a_model_is_refused(write, content):
    message = (
        "pickle 'a.pkl' has no 'model' of arrays by name; "
        "name a .pkl of airsplay or detectron2, or a safetensors file"
    )
    with pytest.raises(WeightsError, match=message):
        load_pickle(write(content))


@pytest.mark.parametrize(("value", "kind"), [(np.arange(3), "int64"), ([0.5], "list")])
def test_a_value_that_is_not_an_array_of_floats_is_refused(write, value, kind):
    message = f"'w' in 'a.pkl' is {kind}, not an array of floats; download the file again"
    with pytest.raises(WeightsError, match=message):
        load_pickle(write({"model": {"w": value}}))


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_arrays_are_read_equal(write, protocol):
    shared = np.arange(4, dtype=np.int16)
    arrays: dict[str, Any] = OrderedDict(
        a=np.arange(6, dtype=np.float32).reshape(2, 3),
        b=np.array([0.5]),
        c=np.asfortranarray(np.arange(6, dtype=">f8").reshape(3, 2)),
        d=np.array([True, False]),
        e=np.empty((0, 3), np.uint8),
        f=np.array(2.5, np.float16),
        g=shared,
        h=shared,
    )
    content = {"model": arrays, "matching": True, "t": ((), (1,), (1, 2.5), (None, -7, 2**70))}
    loaded: Any = load_arrays(write(content, protocol))
    assert loaded["matching"] is True
    assert loaded["t"] == content["t"]
    assert loaded["model"].keys() == arrays.keys()
    for key, expected in arrays.items():
        assert loaded["model"][key].dtype == expected.dtype
        np.testing.assert_array_equal(loaded["model"][key], expected)


@pytest.mark.parametrize("module", ["numpy.core.multiarray", "numpy._core.multiarray"])
def test_arrays_of_old_and_new_numpy_are_read(write, module):
    pickled = pickle.dumps(np.ones(3, np.float32), protocol=2)
    old, new = b"numpy.core.multiarray", b"numpy._core.multiarray"
    loaded: Any = load_arrays(write(pickled.replace(new, old).replace(old, module.encode())))
    assert loaded.tolist() == [1, 1, 1]


def test_text_and_dictionaries_of_python_2_are_read(write):
    # {'w': OrderedDict([['k', '\xe9']])} with byte strings, as Python 2's cPickle writes them
    pickled = (
        b"\x80\x02}U\x01wccollections\nOrderedDict\n(]](U\x01kU\x01\xe9eatR}U\x08metadata]sbs."
    )
    assert load_arrays(write(pickled)) == {"w": {"k": "é"}}


def test_the_opcode_for_instances_is_refused(write):
    with pytest.raises(WeightsError, match=r"unsafe: it refers to 'os\.system'"):
        load_arrays(write(b"(S'true'\nios\nsystem\n."))


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
def test_a_pickle_that_refers_to_other_names_is_refused_and_nothing_runs(
    write, tmp_path, monkeypatch, call, name, protocol
):
    monkeypatch.chdir(tmp_path)
    load = load_detector if protocol else load_arrays  # protocol 0 has no first byte of its own
    message = refusal(load, write({"model": Call(*call)}, protocol))
    assert message.replace("__builtin__", "builtins") == (
        f"pickle 'a.pkl' is unsafe: it refers to '{name}', and nothing of it was run; "
        "do not use this file"
    )
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.pkl"]


UNKNOWN_STATE = "the state of an array or dtype is unknown"
NOT_AN_ARRAY = "it calls something that does not make an array of numbers"


@pytest.mark.parametrize(
    "code", ["O8", "O", "V8", "S4", "U1", "m8", "M8", "c8", "f4,O8", "(2,)f4", "f16", ["f4"]]
)
def test_dtypes_of_anything_but_numbers_are_never_built(write, monkeypatch, code):
    with pytest.raises(WeightsError, match=NOT_AN_ARRAY):
        load_arrays(write(array(kind=dtype(code))))


@pytest.mark.parametrize(
    "state",
    [
        (3, "|", None, None, None, -1, -1, 63),  # flags of an object dtype
        (3, "|", None, None, None, 8, 8, 27),
        (3, "<", (np.dtype("f4"), (2**40,)), None, None, -1, -1, 0),  # a subarray
        (3, "<", None, ("a",), {"a": (np.dtype("f4"), 2**40)}, 4, 1, 0),  # fields, out of bounds
        (4, "<", None, None, None, -1, -1, 0, {"metadata": 1}),
        (2, "<", None, None, None, -1, -1),
        (3, "=", None, None, None, -1, -1, 0),
        (3, "<", None, None, None, -1, -1),
        "<",
    ],
)
def test_forged_states_of_a_dtype_are_refused(write, state):
    with pytest.raises(WeightsError, match=f"is damaged: {UNKNOWN_STATE}; download it again"):
        load_arrays(write(array(kind=dtype(state=state))))


@pytest.mark.parametrize(
    ("forged", "reason"),
    [
        (array((3,)), "8 bytes do not fill an array of its shape"),
        (array((2**62, 4)), "8 bytes do not fill an array of its shape"),
        (array((2**40,)), "8 bytes do not fill an array of its shape"),
        (array((-2,)), "8 bytes do not fill an array of its shape"),
        (array((-1, -2)), "8 bytes do not fill an array of its shape"),
        (array((2.0,)), "int expected, not float"),
        (array(([2],)), "int expected, not list"),
        (array((0,) + (2**62,) * 40, content=b""), ""),
        (array((2,), content=[1, 2]), "bytes expected, not list"),
        (array(2), UNKNOWN_STATE),
        (array(version=2), UNKNOWN_STATE),
        (array(kind=np.ndarray), UNKNOWN_STATE),
        (array(kind=dtype(state=None)), UNKNOWN_STATE),
        (Call(np.dtype, "f4", False, True, state=array()), UNKNOWN_STATE),
        (Call(np.ndarray, (2**60,), "f8"), NOT_AN_ARRAY),
        (Call(np.ndarray, (4,), "f4", b"", 0, (2**40,)), NOT_AN_ARRAY),  # strides
        (Call(RECONSTRUCT, OrderedDict, (0,), b"b"), NOT_AN_ARRAY),
        (Call(RECONSTRUCT, np.ndarray, (2**50,), b"b"), NOT_AN_ARRAY),
        (Call(RECONSTRUCT, np.ndarray, (0,), b"O"), NOT_AN_ARRAY),
        (Call(codecs.encode, "a", "rot13"), NOT_AN_ARRAY),
        (Call(codecs.encode, 1, "latin1"), NOT_AN_ARRAY),
        (Call(bytes, 2**40), NOT_AN_ARRAY),
        (Call(OrderedDict, "ab"), NOT_AN_ARRAY),
        ({(1, 2): 3}, "str expected, not tuple"),
        (Call(FROM_BUFFER, bytes(8), dtype(), (3,), "C"), "8 bytes do not fill an array of its"),
        (Call(FROM_BUFFER, bytes(8), dtype(), (2**40,), "C"), "8 bytes do not fill an array of"),
        (Call(FROM_BUFFER, bytes(8), dtype("O8"), (1,), "C"), NOT_AN_ARRAY),
        (Call(FROM_BUFFER, bytes(8), "O", (1,), "C"), NOT_AN_ARRAY),
        (Call(FROM_BUFFER, bytes(8), dtype(state=None), (2,), "C"), NOT_AN_ARRAY),
        (Call(FROM_BUFFER, bytes(8), dtype(), (2,), "A"), NOT_AN_ARRAY),
        (Call(FROM_BUFFER, bytes(8), dtype(), 2, "C"), NOT_AN_ARRAY),
        (Call(FROM_BUFFER, array(), dtype(), (2,), "C"), NOT_AN_ARRAY),
    ],
)
def test_forged_arrays_are_refused(write, forged, reason):
    with pytest.raises(WeightsError, match=f"'a.pkl' is damaged: {reason}"):
        load_arrays(write({"model": forged}))


def test_an_array_is_built_once(write):
    pickled = pickle.dumps(np.ones(2, np.float32), protocol=2)
    state = pickled[pickled.index(b"(K\x01") : -1]
    with pytest.raises(WeightsError, match=UNKNOWN_STATE):
        load_arrays(write(pickled[:-1] + state + b"."))


def test_bytes_that_are_repeated_beyond_the_size_of_the_file_are_refused(write):
    content, kind = bytes(4000), np.dtype("f4")
    forged = [array((1000,), kind=kind, content=content) for _ in range(200)]
    with pytest.raises(WeightsError, match="its arrays are larger than the file"):
        load_arrays(write(forged, protocol=4))


@pytest.mark.parametrize(
    "repeated",
    [
        lambda text, pairs, fields: Call(codecs.encode, text, "latin1"),
        lambda text, pairs, fields: Call(OrderedDict, pairs),
        lambda text, pairs, fields: Call(Counter, state=fields),
    ],
    ids=["bytes", "dictionaries", "attributes"],
)
def test_copies_of_one_object_beyond_the_size_of_the_file_are_refused(write, repeated):
    fields = {str(number): number for number in range(1000)}
    pairs = [list(pair) for pair in fields.items()]
    forged = [repeated("x" * 4000, pairs, fields) for _ in range(200)]
    with pytest.raises(WeightsError, match="its copies are larger than the file"):
        load_arrays(write(forged))


def test_an_array_that_is_repeated_takes_memory_once(write):
    array = np.ones(1000, np.float32)
    tensors = load_pickle(write({"model": {str(name): array for name in range(500)}}))
    assert len({tensor.data_ptr() for tensor in tensors.values()}) == 1


@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.99])
def test_a_truncated_pickle_is_refused(write, part):
    pickled = pickle.dumps({"model": {"a": np.ones(1000)}}, protocol=2)
    with pytest.raises(WeightsError, match=r"pickle 'a.pkl' is damaged: .*; download it again"):
        load_arrays(write(pickled[: int(part * len(pickled))]))
