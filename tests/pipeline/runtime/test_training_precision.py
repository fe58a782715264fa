"""Tests of the precision of training, which must not outlast it."""

import pytest
import torch
import yaml

from a2cap.pipeline.configuration import load_config
from a2cap.pipeline.runtime import training_precision as precision_module
from a2cap.pipeline.runtime.training_precision import (
    deterministic_operations,
    forward_precision,
    matrix_precision,
    resolve_training_precision,
    warn_about_bf16,
)

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("precision", "device", "has_gpu", "is_fast", "expected"),
    [
        ("auto", "cpu", False, True, "bf16"),
        ("auto", "cpu", True, False, "fp32"),
        ("auto", "auto", True, True, "bf16"),
        ("auto", "auto", False, False, "fp32"),
        ("auto", "cuda:1", True, True, "bf16"),
        ("auto", "cuda", False, True, "fp32"),
        ("auto", "gpu", True, True, "fp32"),
        ("fp32", "cpu", False, True, "fp32"),
        ("bf16", "cpu", False, False, "bf16"),
    ],
)
def test_auto_follows_from_the_kind_of_processor(
    monkeypatch, precision, device, has_gpu, is_fast, expected
):
    monkeypatch.setattr(precision_module, "find_gpu", lambda: (has_gpu, ""))
    monkeypatch.setattr(precision_module, "has_bfloat16", lambda device: is_fast)
    assert resolve_training_precision(precision, device) == expected


@pytest.mark.parametrize("is_fast", [True, False])
def test_a_configuration_contains_the_precision_that_auto_is(monkeypatch, is_fast):
    monkeypatch.setattr(precision_module, "has_bfloat16", lambda device: is_fast)
    fields = [f"{name}.precision=auto" for name in ("train", "detector")]
    config = load_config(overrides=[*fields, "runtime.device=cpu"])
    expected = "bf16" if is_fast else "fp32"
    sections = (config.train, config.scst, config.detector)
    assert [section.precision for section in sections] == [expected, "fp32", expected]
    assert yaml.safe_load(config.to_yaml())["train"]["precision"] == expected
    assert config.train.model_dump().get("precision", "fp32") == expected


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [("fp32", torch.float32), ("tf32", torch.float32), ("bf16", torch.bfloat16)],
)
def test_only_bf16_multiplies_in_bfloat16(precision, dtype):
    with forward_precision(precision, CPU):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == dtype
    assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32


@pytest.mark.parametrize(
    ("precision", "expected"), [("fp32", "highest"), ("tf32", "high"), ("bf16", "highest")]
)
def test_only_tf32_rounds_float32_and_only_inside_the_block(precision, expected):
    with pytest.raises(ZeroDivisionError), matrix_precision(precision):
        assert torch.get_float32_matmul_precision() == expected
        raise ZeroDivisionError
    assert torch.get_float32_matmul_precision() == "highest"


def test_operations_are_deterministic_only_inside_the_block(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    with pytest.raises(ZeroDivisionError), deterministic_operations(CPU):
        assert torch.are_deterministic_algorithms_enabled()
        raise ZeroDivisionError
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize(
    ("precision", "emulated", "messages"),
    [
        (
            "bf16",
            True,
            ["cpu emulates bfloat16, many times slower: bf16; set train.precision to fp32"],
        ),
        ("bf16", False, []),
        ("fp32", True, []),
    ],
)
def test_bf16_warns_where_bfloat16_is_emulated(precision, emulated, messages, monkeypatch, caplog):
    monkeypatch.setattr(precision_module, "has_bfloat16", lambda device: not emulated)
    warn_about_bf16(precision, CPU)
    assert caplog.messages == messages
