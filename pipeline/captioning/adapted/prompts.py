"""Prompts of captioners of `transformers`: the default of each class, and its chat template."""

from typing import Any

from a2cap.data.errors import ConfigError

DEFAULT = "Describe the image in one sentence."

_OWN = {
    "florence2": "<CAPTION>",
    "paligemma": "caption en",
    **dict.fromkeys(("blip", "blip-2", "git", "instructblip", "vision-encoder-decoder"), ""),
}
"""`model_type` -> prompt of a class that has no chat template."""
_UNPROMPTED = ("git", "vision-encoder-decoder")
"""`model_type` of captioners that continue no text."""


def prompt_of(model: Any, prompt: str | None) -> str:
    """Return a prompt, by default that of the model's class.

    Raises ConfigError for a prompt that the class cannot read.
    """
    kind = model.config.model_type
    if prompt and kind in _UNPROMPTED:
        raise ConfigError(
            f"{type(model).__name__} reads no prompt, which is {prompt!r}; leave it out"
        )
    return prompt_of_kind(kind) if prompt is None else prompt


def prompt_of_kind(kind: str) -> str:
    """Return the default prompt of a `model_type`."""
    return _OWN.get(kind, DEFAULT)


def as_text(model: Any, processor: Any, prompt: str) -> str | None:
    """Return the text that the processor gets with an image, None for none.

    Raises ConfigError for a processor without chat template, unless the prompt names the image.
    """
    kind = model.config.model_type
    image = getattr(processor, "image_token", None)
    if kind == "paligemma":
        return f"{image}{prompt}"
    if kind in _OWN or not _reads_image_tokens(model):
        return prompt or None
    if image and image in prompt:
        return prompt
    if getattr(processor, "chat_template", None):
        parts = [{"type": "image"}] + ([{"type": "text", "text": prompt}] if prompt else [])
        text: str = processor.apply_chat_template(
            [{"role": "user", "content": parts}], add_generation_prompt=True, tokenize=False
        )
        return text
    raise ConfigError(
        f"no chat template in the processor of {type(model).__name__}; give a prompt that contains "
        f"{image or 'its image token'!r}, as --prompt or prompt="
    )


def _reads_image_tokens(model: Any) -> bool:
    names = ("image_token_id", "image_token_index")
    return any(getattr(model.config, name, None) is not None for name in names)
