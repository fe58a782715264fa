"""Settings of beam search and sampling."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, Field, model_validator

from a2cap.model.alignment_config import FROZEN


class DecodingConfig(BaseModel):
    """Settings of beam search and sampling; the defaults are the paper's."""

    model_config = FROZEN

    method: Literal["beam-search", "sampling"] = "beam-search"
    """Source of the captions; the most probable one comes first, unless `consensus` is set."""

    beam_size: Annotated[int, Field(ge=1, le=1000)] = 5
    """K, beams kept per image, or captions sampled; 1 beam is greedy decoding."""

    min_length: Annotated[int, Field(ge=0, le=500)] = 0
    """Minimum caption length in tokens, without <eos>."""

    max_length: Annotated[int, Field(ge=1, le=500)] = 20
    """Maximum caption length in tokens, <eos> included."""

    length_penalty: Annotated[float, Field(ge=0, le=10)] = 0.0
    """Rank beams by log p / length^penalty; 0 is the paper's plain sum, 1 the mean."""

    consensus: bool = False
    """Choose the caption that agrees most with all that were found, in place of the most probable
    one (minimum Bayes risk, Kumar and Byrne 2004; model/self_critical/consensus.py). It needs many,
    such as a beam_size of 20; the scores shown stay log-probabilities."""

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

    temperature: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """Divisor of the log-probabilities in sampling."""

    top_k: Annotated[int, Field(ge=0)] = 0
    """Tokens among which sampling chooses, the most probable (Fan et al. 2018, arXiv:1805.04833); 0
    is all."""

    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Probability of the tokens among which sampling chooses: the fewest that have it together
    (Holtzman et al. 2020, section 3.1, arXiv:1904.09751)."""

    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of sampling."""

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        if self.min_length > self.max_length:
            raise ValueError(
                f"min_length {self.min_length} is above max_length {self.max_length}; lower "
                "min_length, or raise max_length"
            )
        if self.method == "sampling" and (self.groups > 1 or self.no_repeat_ngram):
            name = "groups" if self.groups > 1 else "no_repeat_ngram"
            raise ValueError(
                f"{name} is {getattr(self, name)}, but method is 'sampling'; leave {name} out, or "
                "set method to beam-search"
            )
        ignored = [
            name
            for name in ("temperature", "top_k", "top_p")
            if getattr(self, name) != type(self).model_fields[name].default
        ]
        if self.method != "sampling" and ignored:
            name = ignored[0]
            raise ValueError(
                f"{name} is {getattr(self, name)}, but method is {self.method!r}; leave {name} "
                "out, or set method to sampling"
            )
        if self.consensus and self.beam_size < 3:
            raise ValueError(
                f"consensus is true, but none of {self.beam_size} captions agrees more with the "
                "others; raise beam_size, or set consensus to false"
            )
        if self.beam_size % self.groups:
            raise ValueError(
                f"{self.beam_size} beams cannot be divided among {self.groups} groups; choose a "
                "number of groups that divides beam_size"
            )
        return self
