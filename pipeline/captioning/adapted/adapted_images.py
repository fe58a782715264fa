"""Captioners of `transformers` in the commands that caption images."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from a2cap.data.errors import A2Error, ConfigError
from a2cap.model.alignment_config import AlignmentConfig
from a2cap.pipeline.captioning.adapted.adapted_model import AdaptedModel
from a2cap.pipeline.captioning.adapted.load_model import (
    SETTINGS,
    load_alignment,
    load_network,
    load_processor,
)
from a2cap.pipeline.captioning.captioned_image import CaptionedImage, OpenedImage
from a2cap.pipeline.captioning.captioning_config import CaptioningConfig
from a2cap.pipeline.runtime.device import prepare_device
from a2cap.pipeline.runtime.runtime_config import RuntimeConfig

_LONGEST = 60
"""Tokens of a caption where neither a setting nor the model states them."""
_NAMES = {
    "beam_size": "num_beams",
    "min_length": "min_new_tokens",
    "max_length": "max_new_tokens",
    "length_penalty": "length_penalty",
    "no_repeat_ngram": "no_repeat_ngram_size",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
}
"""Setting of decoding -> argument of `generate`."""
_OTHERS = frozenset(("method", "seed", "precision", "prompt", "batch_size"))


class AdaptedImages:
    """A model that `save_pretrained` wrote, as a `BatchCaptioner`.

    decoding: settings that are not set are those of the model's generation_config.json.
    least_beams: raises a smaller number of beams. Raises A2Error for an unusable model or setting.
    """

    reads_boxes = False

    def __init__(
        self,
        folder: Path,
        *,
        decoding: CaptioningConfig,
        runtime: RuntimeConfig,
        least_beams: int = 1,
    ) -> None:
        _require_known(decoding)
        device = prepare_device(runtime)
        network = load_network(folder)
        fields = getattr(network.config, SETTINGS, None) or {"fusion": "none"}
        self.alignment = AlignmentConfig.model_validate(fields)
        processor, tokenizer = load_processor(folder)
        self.model = AdaptedModel(
            network,
            processor,
            tokenizer=tokenizer,
            alignment=self.alignment,
            prompt=decoding.prompt,
        )
        if fields["fusion"] != "none":
            load_alignment(network, folder)
        network.eval().to(device)
        if decoding.precision == "bf16":
            network.to(torch.bfloat16)
        self._seed = decoding.seed if decoding.method == "sampling" else None
        self._generation = _arguments(network.generation_config, decoding, least_beams)
        fusion = "" if fields["fusion"] == "none" else f", fusion {fields['fusion']}"
        self._kind = f"{type(network).__name__}{fusion}"
        self.about = (
            f"{type(network).__name__}, a model of transformers with the prompt "
            f"{self.model.prompt!r}."
        )

    @property
    def facts(self) -> dict[str, str]:
        """What is known of the captioner: model, decoding, use."""
        beams = self._generation["num_return_sequences"]
        kind = "beams" if self._seed is None else "samples"
        return {"model": self._kind, "decoding": f"best of {beams} {kind}", "about": self.about}

    def caption_each(
        self, images: Sequence[Callable[[], OpenedImage]], *, attention: bool = False
    ) -> list[CaptionedImage | A2Error]:
        """Return the captions of the images that each function opens, or its A2Error."""
        opened: list[OpenedImage | A2Error] = []
        for read in images:
            try:
                opened.append(read())
            except A2Error as error:
                opened.append(error)
        readable = [image.pixels for image in opened if isinstance(image, OpenedImage)]
        captioned = iter(self._caption(readable, attention=attention) if readable else ())
        return [image if isinstance(image, A2Error) else next(captioned) for image in opened]

    def attend(self, image: OpenedImage, caption: str) -> CaptionedImage:
        """Return a given caption of an image with the attention at each word."""
        return self.model.attend(image.pixels, caption)

    def tokens(self, width: int, height: int) -> int:
        """Return the tokens of an image of this size; 0 if they are not known beforehand."""
        return self.model.tokens(width, height)

    def _caption(self, images: Sequence[Any], *, attention: bool) -> list[CaptionedImage]:
        if self._seed is None:
            return self.model.caption(images, attention=attention, **self._generation)
        with torch.random.fork_rng():
            torch.manual_seed(self._seed)
            return self.model.caption(images, attention=attention, **self._generation)


def _require_known(decoding: CaptioningConfig) -> None:
    """Raise ConfigError for settings that `generate` does not have."""
    supported = _NAMES.keys() | _OTHERS
    unknown = sorted(decoding.model_fields_set & CaptioningConfig.model_fields.keys() - supported)
    changed = [name for name in unknown if getattr(decoding, name) != _default(name)]
    if changed:
        raise ConfigError(
            f"{changed[0]} has no effect on a model of transformers; leave it out "
            f"({', '.join(sorted(supported))} have)"
        )


def _default(name: str) -> object:
    return CaptioningConfig.model_fields[name].default


def _arguments(saved: Any, decoding: CaptioningConfig, least_beams: int) -> dict[str, object]:
    """Return the arguments of `generate`; saved: the model's own."""
    asked = decoding.model_fields_set
    arguments = {name: getattr(decoding, field) for field, name in _NAMES.items() if field in asked}
    # generate's own default counts the tokens of the prompt
    arguments.setdefault("max_new_tokens", getattr(saved, "max_new_tokens", None) or _LONGEST)
    beams = max(arguments.pop("num_beams", None) or saved.num_beams or 1, least_beams)
    if decoding.method == "sampling":
        return {**arguments, "do_sample": True, "num_beams": 1, "num_return_sequences": beams}
    return {**arguments, "do_sample": False, "num_beams": beams, "num_return_sequences": beams}
