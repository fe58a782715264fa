import itertools

import pytest
import torch

from a2.model.beam_search import beam_search
from a2.model.captioner import DecoderState, Memory, SpecialTokens, StepOutput

FUSIONS = ["none", "max", "moving", "decay", "gate"]
ALLOWED = [2, *range(4, 11)]


def _greedy(captioner, memory, max_length):
    """Greedy decoding of one picture, without a cache."""
    words: list[int] = []
    total = 0.0
    while len(words) < max_length and words[-1:] != [2]:
        log_probs = captioner(memory, torch.tensor([[[1, *words]]]))[0, 0, -1]
        words.append(max(ALLOWED, key=lambda token: log_probs[token].item()))
        total += log_probs[words[-1]].item()
    return tuple(words), total


def _one(captioner, pictures, number):
    exists = pictures.region_mask[number]
    return captioner.encode(
        pictures.features[number : number + 1, exists],
        pictures.boxes[number : number + 1, exists],
        exists[None, exists],
    )


@pytest.mark.parametrize("fusion", FUSIONS)
def test_beam_of_one_equals_greedy_decoding(tiny, pictures, fusion):
    captioner = tiny(fusion=fusion)
    found = beam_search(captioner, pictures.encoded(captioner), beam_size=1, max_length=8)
    for number in range(3):
        tokens, log_prob = _greedy(captioner, _one(captioner, pictures, number), 8)
        (best,) = found[number]
        assert best.tokens == tokens
        assert best.log_prob == best.score == pytest.approx(log_prob, abs=1e-10)


@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
def test_beam_score_equals_the_teacher_forced_score(tiny, pictures, length_penalty):
    captioner = tiny()
    memory = pictures.encoded(captioner)
    found = beam_search(captioner, memory, max_length=7, length_penalty=length_penalty)
    captions = torch.tensor(
        [[[*h.tokens, *[0] * (7 - len(h.tokens))] for h in picture] for picture in found]
    )
    log_probs = captioner.score(memory, captions).log_probs.sum(-1)
    for number, picture in enumerate(found):
        assert len({hypothesis.tokens for hypothesis in picture}) == 5
        scores = [hypothesis.score for hypothesis in picture]
        assert scores == sorted(scores, reverse=True)
        for rank, hypothesis in enumerate(picture):
            assert hypothesis.log_prob == pytest.approx(log_probs[number, rank].item(), abs=1e-10)
            expected = hypothesis.log_prob / len(hypothesis.tokens) ** length_penalty
            assert hypothesis.score == pytest.approx(expected)


def test_wider_beams_find_captions_at_least_as_probable(tiny, pictures):
    captioner = tiny()
    memory = pictures.encoded(captioner)
    greedy, wide = (beam_search(captioner, memory, beam_size=size) for size in (1, 5))
    for narrow, broad in zip(greedy, wide, strict=True):
        assert broad[0].log_prob >= narrow[0].log_prob - 1e-12


def test_batched_pictures_get_what_they_get_alone(tiny, pictures):
    captioner = tiny()
    batched = beam_search(captioner, pictures.encoded(captioner), max_length=9)
    for number in range(3):
        (alone,) = beam_search(captioner, _one(captioner, pictures, number), max_length=9)
        assert [h.tokens for h in alone] == [h.tokens for h in batched[number]]
        for one, other in zip(alone, batched[number], strict=True):
            assert one.log_prob == pytest.approx(other.log_prob, abs=1e-10)


@pytest.mark.parametrize("length_penalty", [0.0, 0.7])
def test_beam_as_wide_as_all_captions_equals_exhaustive_search(tiny, pictures, length_penalty):
    captioner = tiny()
    memory = _one(captioner, pictures, 0)
    words = (4, 5)
    ended = [(*body, 2) for length in range(3) for body in itertools.product(words, repeat=length)]
    captions = ended + list(itertools.product(words, repeat=3))
    padded = torch.tensor([[[*c, *[0] * (3 - len(c))] for c in captions]])
    log_probs = captioner.score(memory, padded).log_probs[0].sum(-1).tolist()
    scores = {
        caption: log_prob / len(caption) ** length_penalty
        for caption, log_prob in zip(captions, log_probs, strict=True)
    }
    forbidden = [token for token in range(11) if token not in (2, *words)]
    (found,) = beam_search(
        captioner,
        memory,
        beam_size=27,
        max_length=3,
        length_penalty=length_penalty,
        forbidden=forbidden,
    )
    assert [h.tokens for h in found] == sorted(scores, key=lambda caption: -scores[caption])
    for hypothesis in found:
        assert hypothesis.score == pytest.approx(scores[hypothesis.tokens], abs=1e-10)


def test_pad_bos_and_unknown_are_never_said_unless_allowed(tiny, pictures):
    captioner = tiny()
    captioner.decoder.output.bias.data[[0, 1, 3]] += 100
    memory = pictures.encoded(captioner)
    for picture in beam_search(captioner, memory):
        assert not {0, 1, 3} & {token for h in picture for token in h.tokens}
    allowed = beam_search(captioner, memory, beam_size=1, max_length=4, forbidden=(0, 1))
    assert allowed[0][0].tokens == (3, 3, 3, 3)


def test_captions_end_at_eos_or_at_the_longest_length(tiny, pictures):
    captioner = tiny()
    memory = pictures.encoded(captioner)
    captioner.decoder.output.bias.data[2] -= 100
    assert {len(h.tokens) for p in beam_search(captioner, memory, max_length=4) for h in p} == {4}
    captioner.decoder.output.bias.data[2] += 200
    assert [p[0].tokens for p in beam_search(captioner, memory)] == [(2,)] * 3


class Scripted:
    """A captioner of fixed log-probabilities, whatever was said, that counts its steps."""

    special = SpecialTokens()

    def __init__(self, probabilities: list[float]):
        self.log_probs = torch.tensor(probabilities).log()
        self.vocabulary_size = len(probabilities)
        self.steps = 0

    def start(self, memory: Memory, rows_per_image: int) -> DecoderState:
        return DecoderState(memory, rows_per_image)

    def step(self, tokens, state, *, attention=False):
        self.steps += 1
        return StepOutput(self.log_probs.expand(len(tokens), -1), None, state)

    def reorder(self, state: DecoderState, index: torch.Tensor) -> DecoderState:
        return state.reordered(index)


def _nothing(pictures: int) -> Memory:
    return Memory(torch.zeros(pictures, 1, 1), torch.ones(pictures, 1, dtype=torch.bool), ())


def test_ties_go_to_the_earlier_beam_and_the_smaller_token():
    captioner = Scripted([0, 0, 0, 0, 0.25, 0.25, 0.25, 0.25])
    found = beam_search(captioner, _nothing(2), beam_size=3, max_length=2)
    expected = [(4, 4), (4, 5), (4, 6)]
    assert [[h.tokens for h in picture] for picture in found] == [expected, expected]


def test_finished_beams_stop_the_loop():
    captioner = Scripted([0, 0, 0.9, 0, 0.1])
    (found,) = beam_search(captioner, _nothing(1), beam_size=2, max_length=20)
    assert [h.tokens for h in found] == [(2,), (4, 2)]
    assert captioner.steps == 2


def test_length_penalty_prefers_longer_captions():
    captioner = Scripted([0, 0, 0.5, 0, 0.5])
    for length_penalty, best in ((0.0, (2,)), (2.0, (4, 4, 2))):
        (found,) = beam_search(
            captioner, _nothing(1), beam_size=8, max_length=3, length_penalty=length_penalty
        )
        assert found[0].tokens == best


def test_fewer_captions_than_beams_leave_places_empty():
    captioner = Scripted([0, 0, 0.5, 0, 0.5])
    (found,) = beam_search(captioner, _nothing(1), beam_size=9, max_length=2)
    assert [h.tokens for h in found] == [(2,), (4, 2), (4, 4)]


def test_search_leaves_no_gradient(tiny, pictures):
    captioner = tiny()
    beam_search(captioner, pictures.encoded(captioner), max_length=3)
    assert all(parameter.grad is None for parameter in captioner.parameters())
    assert all(parameter.requires_grad for parameter in captioner.parameters())


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"beam_size": 0}, "beam size is too small: 0; choose 1 (greedy) or more"),
        ({"max_length": 0}, "longest caption is too short: 0; choose 1 token or more"),
    ],
)
def test_impossible_sizes_are_refused(tiny, pictures, sizes, message):
    captioner = tiny()
    with pytest.raises(ValueError) as raised:
        beam_search(captioner, pictures.encoded(captioner), **sizes)
    assert str(raised.value) == message
