"""Loading a captioner that `save_pretrained` wrote, with its alignment and its processor."""

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import safe_open
from transformers.core_model_loading import revert_weight_conversion
from transformers.utils import logging

from a2cap.data.errors import ConfigError, WeightsError
from a2cap.extract.weights.torch_files import load_torch_file
from a2cap.pipeline.captioning.adapted.pretrained import CONFIG

SETTINGS = "a2_alignment"
"""Field of the model's config.json."""
WEIGHTS = ".a2."
"""Part of the name of every parameter of alignment."""
GENERATION = "generation_config.json"
_LONGEST = 200  # characters of a reason


def load_network(directory: Path) -> Any:
    """Load a model without its alignment; raise ConfigError or WeightsError for another folder."""
    if not (directory / CONFIG).is_file():
        raise ConfigError(
            f"not a saved model: {str(directory)!r}; name a directory of save_pretrained"
        )
    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        kind = _kind(directory)
        # they are loaded after the model was adapted
        kind._keys_to_ignore_on_load_unexpected = [
            *(kind._keys_to_ignore_on_load_unexpected or []),
            WEIGHTS.replace(".", r"\."),
        ]
        tensors = _pickled(directory)
        network, report = kind.from_pretrained(
            directory if tensors is None else None,
            config=None if tensors is None else _config(directory),
            state_dict=tensors,
            output_loading_info=True,
            trust_remote_code=False,
            local_files_only=True,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # reported below, by name
        )
        if tensors is not None:
            network.name_or_path = str(directory)
            if (directory / GENERATION).is_file():
                network.generation_config = transformers.GenerationConfig.from_pretrained(directory)
    except (ConfigError, WeightsError):
        raise
    except Exception as error:  # of many types, for damaged files and unknown models
        raise _unloadable(directory, " ".join(str(error).split())[:_LONGEST]) from error
    finally:
        if bars:
            logging.enable_progress_bar()
    if report["mismatched_keys"]:
        name, saved, expected = min(report["mismatched_keys"])
        shapes = f"{name!r} is {tuple(saved)}, the configuration expects {tuple(expected)}"
        raise _unloadable(directory, shapes)
    missing = sorted(report["missing_keys"])
    if missing:  # transformers would draw them at random
        raise _unloadable(directory, f"it has no {missing[0]!r}, of {len(missing)} missing weights")
    return network


def _config(directory: Path) -> Any:
    return transformers.AutoConfig.from_pretrained(directory, trust_remote_code=False)


def _pickled(directory: Path) -> dict[str, torch.Tensor] | None:
    """Return the tensors of a model that was saved as `.bin` alone, None for any other.

    Raises WeightsError where they refer to anything but tensors; no code of them is run.
    """
    files = sorted(directory.glob("pytorch_model*.bin"))
    if not files or any(directory.glob("*.safetensors")):
        return None
    tensors: dict[str, torch.Tensor] = {}
    for file in files:
        tensors.update(load_torch_file(file))
    return tensors


def _unloadable(directory: Path, reason: str) -> WeightsError:
    return WeightsError(
        f"cannot load {str(directory)!r}: {reason}; name an undamaged directory of save_pretrained"
    )


def _kind(directory: Path) -> Any:
    """Return the model's class; raise ConfigError for one that is not a captioner."""
    fields = transformers.PreTrainedConfig.get_config_dict(directory, local_files_only=True)[0]
    registered = transformers.CONFIG_MAPPING
    if fields.get("auto_map") and fields.get("model_type") not in registered:
        raise ConfigError(
            f"{str(directory)!r} needs code of its own, which a2 never runs (trust_remote_code "
            "stays off); name a model whose class is in transformers"
        )
    config = _config(directory)
    [name] = config.architectures or ["no architecture"]
    kind: Any = getattr(transformers, name)
    is_model = isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)
    if not is_model:
        raise AttributeError(f"{name} is not a model of transformers")
    inputs = inspect.signature(kind.forward).parameters
    if not {"pixel_values", "encoder_outputs"} & set(inputs):
        raise ConfigError(
            f"{name} in {str(directory)!r} reads no images; name a captioner, such as BLIP, LLaVA "
            "or Qwen-VL"
        )
    return kind


def load_processor(directory: Path) -> tuple[Any, Any]:
    """Load a processor, and the tokenizer beside an image processor; ConfigError without one."""
    options: Mapping[str, Any] = {"trust_remote_code": False, "local_files_only": True}
    try:
        whole = transformers.AutoProcessor.from_pretrained(directory, **options)
        if hasattr(whole, "image_processor"):
            return whole, whole.tokenizer
        images = transformers.AutoImageProcessor.from_pretrained(directory, **options)
        return images, transformers.AutoTokenizer.from_pretrained(directory, **options)
    except Exception as error:  # of many types, for missing and damaged files
        reason = " ".join(str(error).split())[:_LONGEST]
        raise ConfigError(
            f"no processor in {str(directory)!r}: {reason}; save it there, by "
            "processor.save_pretrained"
        ) from error


def load_alignment(model: Any, directory: Path) -> None:
    """Load the parameters that the model's own `from_pretrained` ignores."""
    expected = {name for name in model.state_dict() if WEIGHTS in name}
    # save_pretrained gives many classes' weights the names of earlier versions
    none = torch.empty(0)
    saved = {name: next(iter(revert_weight_conversion(model, {name: none}))) for name in expected}
    own_names = {other: name for name, other in saved.items()}
    loaded = {}
    for file in sorted(directory.glob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            names = [name for name in list(opened.keys()) if WEIGHTS in name]
            loaded.update({own_names.get(name, name): opened.get_tensor(name) for name in names})
    odd = sorted(expected ^ loaded.keys())
    if odd:
        raise WeightsError(
            f"alignment in {str(directory)!r} is not that of the model: {odd[0]!r} is in one of "
            "them; name the directory of save_pretrained, or start again with alignment="
        )
    model.load_state_dict(loaded, strict=False)
