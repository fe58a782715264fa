"""Settings of beam search."""

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class DecodingConfig(BaseModel):
    """Settings of beam search; the defaults are the paper's."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False
    )

    beam_size: Annotated[int, Field(ge=1, le=1000)] = 5
    """K, beams kept per image; 1 is greedy decoding."""

    max_length: Annotated[int, Field(ge=1, le=500)] = 20
    """Maximum caption length in tokens, <eos> included."""

    length_penalty: Annotated[float, Field(ge=0, le=10)] = 0.0
    """Rank beams by log p / length^penalty; 0 is the paper's plain sum, 1 the mean."""

    no_repeat_ngram: Annotated[int, Field(ge=0, le=500)] = 0
    """Size of n-grams that a caption may contain only once (Paulus et al. 2018, section 2.5,
    arXiv:1705.04304): 3 blocks repeated trigrams, 0 is off, as in the paper."""

    groups: Annotated[int, Field(ge=1, le=1000)] = 1
    """Groups of equally many beams for diverse beam search (Vijayakumar et al. 2016, section 3,
    arXiv:1610.02424); 1 is plain beam search."""

    diversity: Annotated[float, Field(ge=0, le=1000)] = 0.5
    """Penalty on a token in nats per beam of earlier groups that has it at the same position
    (Hamming diversity); 0.2 to 0.8 in Vijayakumar et al."""

    collapse_repeats: bool = False
    """Collapse runs of one word in the finished caption, as M2 does before it scores; off, as in
    the paper."""

    @model_validator(mode="after")
    def _check_groups(self) -> Self:
        if self.beam_size % self.groups:
            raise ValueError(
                f"{self.beam_size} beams cannot be divided among {self.groups} groups; choose a "
                "number of groups that divides beam_size"
            )
        return self
