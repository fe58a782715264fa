"""Rules that split captions into words; `PreprocessConfig` explains them."""

from typing import Literal, get_args

Tokenizer = Literal["karpathy", "ptb", "unicode"]
TOKENIZERS: tuple[Tokenizer, ...] = get_args(Tokenizer)
