import itertools
from dataclasses import replace

import pytest
import torch

from a2cap.model.captioner import DecoderState, Memory, SpecialTokens, StepOutput
from a2cap.model.decoding.beam_search import beam_search
from a2cap.model.errors import ModelError

FUSIONS = ["none", "max", "moving", "decay", "gate"]
ALLOWED = [2, *range(4, 11)]


def _greedy(captioner, memory, max_length):
    """Greedy decoding of one image, without a cache."""
    words: list[int] = []
    total = 0.0
    while len(words) < max_length and words[-1:] != [2]:
        log_probs = captioner(memory, torch.tensor([[[1, *words]]]))[0, 0, -1]
        words.append(max(ALLOWED, key=lambda token: log_probs[token].item()))
        total += log_probs[words[-1]].item()
    return tuple(words), total


def _one(captioner, images, number):
    exists = images.region_mask[number]
    return captioner.encode(
        images.features[number : number + 1, exists],
        images.boxes[number : number + 1, exists],
        exists[None, exists],
    )


@pytest.mark.parametrize("fusion", FUSIONS)
def test_beam_of_one_equals_greedy_decoding(tiny, images, fusion):
    captioner = tiny(fusion=fusion)
    found = beam_search(captioner, images.encoded(captioner), beam_size=1, max_length=8)
    for number in range(3):
        tokens, log_prob = _greedy(captioner, _one(captioner, images, number), 8)
        (best,) = found[number]
        assert best.tokens == tokens
        assert best.log_prob == best.score == pytest.approx(log_prob, abs=1e-10)


@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
def test_beam_score_equals_the_teacher_forced_score(tiny, images, length_penalty):
    captioner = tiny()
    memory = images.encoded(captioner)
    found = beam_search(captioner, memory, max_length=7, length_penalty=length_penalty)
    captions = torch.tensor(
        [[[*h.tokens, *[0] * (7 - len(h.tokens))] for h in image] for image in found]
    )
    log_probs = captioner.score(memory, captions).log_probs.sum(-1)
    for number, image in enumerate(found):
        assert len({hypothesis.tokens for hypothesis in image}) == 5
        scores = [hypothesis.score for hypothesis in image]
        assert scores == sorted(scores, reverse=True)
        for rank, hypothesis in enumerate(image):
            assert hypothesis.log_prob == pytest.approx(log_probs[number, rank].item(), abs=1e-10)
            expected = hypothesis.log_prob / len(hypothesis.tokens) ** length_penalty
            assert hypothesis.score == pytest.approx(expected)


def test_wider_beams_find_captions_at_least_as_probable(tiny, images):
    captioner = tiny()
    memory = images.encoded(captioner)
    greedy, wide = (beam_search(captioner, memory, beam_size=size) for size in (1, 5))
    for narrow, broad in zip(greedy, wide, strict=True):
        assert broad[0].log_prob >= narrow[0].log_prob - 1e-12


def test_batched_images_get_what_they_get_alone(tiny, images):
    captioner = tiny()
    batched = beam_search(captioner, images.encoded(captioner), max_length=9)
    for number in range(3):
        (alone,) = beam_search(captioner, _one(captioner, images, number), max_length=9)
        assert [h.tokens for h in alone] == [h.tokens for h in batched[number]]
        for one, other in zip(alone, batched[number], strict=True):
            assert one.log_prob == pytest.approx(other.log_prob, abs=1e-10)


CHOICES = [
    {},
    {"length_penalty": 0.7},
    {"no_repeat_ngram": 2},
    {"beam_size": 6, "groups": 3, "diversity": 0.8},
]


def _comparable(found):
    return [[(h.tokens, pytest.approx(h.score, abs=1e-10)) for h in p] for p in found]


@pytest.mark.parametrize("choices", CHOICES)
def test_images_get_what_they_get_alone_however_they_are_searched(tiny, images, choices):
    captioner = tiny()
    batched = beam_search(captioner, images.encoded(captioner), max_length=9, **choices)
    for number in range(3):
        memory = _one(captioner, images, number)
        alone = beam_search(captioner, memory, max_length=9, **choices)
        assert _comparable(batched[number : number + 1]) == _comparable(alone)


class Uncached:
    """A captioner that reads all words again at every step."""

    def __init__(self, captioner):
        self.captioner, self.special = captioner, captioner.special
        self.vocabulary_size = captioner.vocabulary_size

    def start(self, memory, rows_per_image):
        return DecoderState(memory, rows_per_image)

    def step(self, tokens, state, *, attention=False):
        words = torch.cat((*state.cached, tokens[:, None]), dim=1)
        by_image = words.reshape(len(state.memory), state.rows_per_image, -1)
        log_probs = self.captioner(state.memory, by_image)[:, :, -1].flatten(0, 1)
        return StepOutput(log_probs, None, replace(state, cached=(words,)))

    def reorder(self, state, index):
        return state.reordered(index)


@pytest.mark.parametrize("choices", CHOICES)
@pytest.mark.parametrize("fusion", FUSIONS)
def test_a_search_with_the_cache_finds_what_one_without_it_finds(tiny, images, fusion, choices):
    captioner = tiny(fusion=fusion)
    memory = images.encoded(captioner)
    found, expected = (
        beam_search(searched, memory, max_length=7, **choices)
        for searched in (captioner, Uncached(captioner))
    )
    assert _comparable(found) == _comparable(expected)


@pytest.mark.parametrize("choices", CHOICES)
def test_probabilities_are_those_of_teacher_forcing_however_captions_are_searched(
    tiny, images, choices
):
    captioner = tiny()
    memory = images.encoded(captioner)
    for number, image in enumerate(beam_search(captioner, memory, max_length=7, **choices)):
        for hypothesis in image:
            caption = torch.zeros(3, 1, 7, dtype=torch.int64)
            caption[number, 0, : len(hypothesis.tokens)] = torch.tensor(hypothesis.tokens)
            scored = captioner.score(memory, caption).log_probs[number].sum().item()
            assert hypothesis.log_prob == pytest.approx(scored, abs=1e-10)


@pytest.mark.parametrize("length_penalty", [0.0, 0.7])
def test_beam_as_wide_as_all_captions_equals_exhaustive_search(tiny, images, length_penalty):
    captioner = tiny()
    memory = _one(captioner, images, 0)
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


def test_pad_bos_and_unknown_are_never_said_unless_allowed(tiny, images):
    captioner = tiny()
    captioner.decoder.output.bias.data[[0, 1, 3]] += 100
    memory = images.encoded(captioner)
    for image in beam_search(captioner, memory):
        assert not {0, 1, 3} & {token for h in image for token in h.tokens}
    allowed = beam_search(captioner, memory, beam_size=1, max_length=4, forbidden=(0, 1))
    assert allowed[0][0].tokens == (3, 3, 3, 3)


def test_captions_end_at_eos_or_at_the_longest_length(tiny, images):
    captioner = tiny()
    memory = images.encoded(captioner)
    captioner.decoder.output.bias.data[2] -= 100
    assert {len(h.tokens) for p in beam_search(captioner, memory, max_length=4) for h in p} == {4}
    captioner.decoder.output.bias.data[2] += 200
    assert [p[0].tokens for p in beam_search(captioner, memory)] == [(2,)] * 3


def _runs(tokens, length):
    return list(zip(*(tokens[start:] for start in range(length)), strict=False))


def _stubborn(tiny):
    """A captioner that says the same words again and again when nothing stops it."""
    captioner = tiny()
    captioner.decoder.output.bias.data[[5, 6]] += 4
    captioner.decoder.output.bias.data[2] -= 4
    return captioner


@pytest.mark.parametrize("length", [1, 2, 3])
def test_no_run_of_words_is_said_twice_where_repeats_are_blocked(tiny, images, length):
    captioner = _stubborn(tiny)
    memory = images.encoded(captioner)
    plain = beam_search(captioner, memory, max_length=9)
    assert any(
        len(set(_runs(h.tokens, length))) < len(_runs(h.tokens, length)) for p in plain for h in p
    )
    for image in beam_search(captioner, memory, max_length=9, no_repeat_ngram=length):
        assert len(image) == 5
        for hypothesis in image:
            runs = _runs(hypothesis.tokens, length)
            assert len(set(runs)) == len(runs)


def test_blocking_runs_that_nobody_repeats_changes_nothing(tiny, images):
    captioner = _stubborn(tiny)
    memory = images.encoded(captioner)
    expected = beam_search(captioner, memory, max_length=7)
    assert beam_search(captioner, memory, max_length=7, no_repeat_ngram=7) == expected


def test_greedy_decoding_with_blocked_trigrams_takes_the_best_word_that_is_left(tiny, images):
    captioner = _stubborn(tiny)
    (found,) = beam_search(
        captioner, _one(captioner, images, 0), beam_size=1, max_length=12, no_repeat_ngram=3
    )
    memory, words = _one(captioner, images, 0), []
    while len(words) < 12 and words[-1:] != [2]:
        said = _runs(words, 3)
        left = [token for token in ALLOWED if (*words[-2:], token) not in said]
        log_probs = captioner(memory, torch.tensor([[[1, *words]]]))[0, 0, -1]
        words.append(max(left, key=lambda token: log_probs[token].item()))
    assert found[0].tokens == tuple(words)
    assert len(set(_runs(words, 2))) < len(_runs(words, 2))


def test_one_group_is_plain_beam_search(tiny, images):
    captioner = tiny()
    memory = images.encoded(captioner)
    assert beam_search(captioner, memory, groups=1, diversity=9.0) == beam_search(captioner, memory)


def test_groups_without_diversity_each_find_what_a_smaller_beam_finds(tiny, images):
    captioner = tiny()
    memory = images.encoded(captioner)
    alone = beam_search(captioner, memory, beam_size=2, max_length=6)
    found = beam_search(captioner, memory, beam_size=6, max_length=6, groups=3, diversity=0.0)
    for one, three in zip(alone, found, strict=True):
        assert [h.tokens for h in three] == [h.tokens for h in one for _ in range(3)]


def _diverse(captioner, memory, *, groups, size, max_length, diversity):
    """Diverse beam search of one image, written out, without a cache."""
    beams = [[((), 0.0)] for _ in range(groups)]
    for _ in range(max_length):
        said = dict.fromkeys(range(11), 0)
        for number, group in enumerate(beams):
            candidates = []
            for words, total in group:
                if words[-1:] == (2,):
                    candidates.append((total, words, total, None))
                    continue
                log_probs = captioner(memory, torch.tensor([[[1, *words]]]))[0, 0, -1].tolist()
                for token in ALLOWED:
                    extended = total + log_probs[token]
                    rank = extended - diversity * said[token]
                    candidates.append((rank, (*words, token), extended, token))
            best = sorted(candidates, key=lambda candidate: -candidate[0])[:size]
            beams[number] = [(words, total) for _, words, total, _ in best]
            for *_, token in best:
                if token is not None:
                    said[token] += 1
    return sorted((pair for group in beams for pair in group), key=lambda pair: -pair[1])


@pytest.mark.parametrize(("groups", "size"), [(2, 2), (3, 1), (2, 3)])
@pytest.mark.parametrize("diversity", [0.3, 2.0])
def test_diverse_groups_are_those_of_the_search_written_out(tiny, images, groups, size, diversity):
    captioner = tiny()
    found = beam_search(
        captioner,
        images.encoded(captioner),
        beam_size=groups * size,
        max_length=5,
        groups=groups,
        diversity=diversity,
    )
    for number in range(3):
        memory = _one(captioner, images, number)
        expected = _diverse(
            captioner, memory, groups=groups, size=size, max_length=5, diversity=diversity
        )
        assert sorted(h.tokens for h in found[number]) == sorted(words for words, _ in expected)
        assert [h.log_prob for h in found[number]] == pytest.approx(
            [total for _, total in expected], abs=1e-10
        )


def test_very_diverse_groups_of_one_begin_with_different_words(tiny, images):
    captioner = tiny()
    memory = images.encoded(captioner)
    for image in beam_search(captioner, memory, beam_size=6, groups=6, diversity=1e3):
        assert len({h.tokens[0] for h in image}) == 6


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


def _nothing(images: int) -> Memory:
    return Memory(torch.zeros(images, 1, 1), torch.ones(images, 1, dtype=torch.bool), ())


def test_ties_go_to_the_earlier_beam_and_the_smaller_token():
    captioner = Scripted([0, 0, 0, 0, 0.25, 0.25, 0.25, 0.25])
    found = beam_search(captioner, _nothing(2), beam_size=3, max_length=2)
    expected = [(4, 4), (4, 5), (4, 6)]
    assert [[h.tokens for h in image] for image in found] == [expected, expected]


class Chained(Scripted):
    """Log-probabilities of the next of 3,000 words by the word before, one of 16 lines."""

    def __init__(self, table: torch.Tensor):
        self.table = table
        self.vocabulary_size = table.shape[1]

    def step(self, tokens, state, *, attention=False):
        return StepOutput(self.table[tokens % 16], None, state)


def _written_out(table, *, beam_size, max_length):
    """Beam search by sorting all continuations; the earlier beam, then the smaller token first."""
    beams = [((), 0.0)]
    for _ in range(max_length):
        candidates = []
        for place, (words, total) in enumerate(beams):
            if words[-1:] == (2,):
                candidates.append((-total, place, 0, words))
                continue
            line = table[(words[-1] if words else 1) % 16]
            extended = (line + torch.tensor(total)).tolist()
            candidates += [
                (-extended[token], place, token, (*words, token))
                for token in (2, *range(4, len(line)))
            ]
        beams = [(words, -lost) for lost, _, _, words in sorted(candidates)[:beam_size]]
    return beams


@pytest.mark.parametrize("spread", ["uneven", "with many ties"])
def test_a_large_vocabulary_is_searched_as_by_sorting_it(spread):
    torch.manual_seed(0)
    logits = torch.randn(16, 3000)
    logits[::2, -20:] += 2  # words that no whole block holds
    table = logits.log_softmax(dim=1)
    if spread == "with many ties":
        table = (table * 4).round() / 4
    captioner = Chained(table)
    found = beam_search(captioner, _nothing(2), beam_size=4, max_length=4)
    expected = _written_out(table, beam_size=4, max_length=4)
    for image in found:
        assert [(h.tokens, h.log_prob) for h in image] == expected


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


def test_search_leaves_no_gradient(tiny, images):
    captioner = tiny()
    beam_search(captioner, images.encoded(captioner), max_length=3)
    assert all(parameter.grad is None for parameter in captioner.parameters())
    assert all(parameter.requires_grad for parameter in captioner.parameters())


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"beam_size": 0}, "beam size is too small: 0; choose 1 (greedy) or more"),
        ({"max_length": 0}, "longest caption is too short: 0; choose 1 token or more"),
        (
            {"groups": 2},
            "5 beams cannot be shared equally by groups: 2; choose a number of groups that divides "
            "the beam size",
        ),
        (
            {"groups": 0},
            "5 beams cannot be shared equally by groups: 0; choose a number of groups that divides "
            "the beam size",
        ),
    ],
)
def test_impossible_sizes_are_refused(tiny, images, sizes, message):
    captioner = tiny()
    with pytest.raises(ModelError) as raised:
        beam_search(captioner, images.encoded(captioner), **sizes)
    assert str(raised.value) == message
