import itertools
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from a2cap.model.captioner import DecoderState, Memory, SpecialTokens, StepOutput
from a2cap.model.decoding.beam_search import _top_k, _top_k_by_keys
from tests.model.kinds import FUSIONS
from tests.model.searching import encode_alone, search

ALLOWED = [2, *range(4, 11)]


def _ngrams(tokens, length):
    return list(zip(*(tokens[start:] for start in range(length)), strict=False))


def _repetitive(tiny, fusion="gate"):
    """Make a captioner that repeats the same tokens unless blocked."""
    captioner = tiny(fusion=fusion)
    captioner.decoder.output.bias.data[[5, 6]] += 4
    captioner.decoder.output.bias.data[2] -= 4
    return captioner


def _greedy(captioner, memory, *, blocked):
    """Decode one image greedily, without a cache, and repeat no n-gram of the blocked length."""
    words: list[int] = []
    total = 0.0
    while len(words) < 12 and words[-1:] != [2]:
        log_probs = captioner(memory, torch.tensor([[[1, *words]]]))[0, 0, -1]
        seen = _ngrams(words, blocked) if blocked else []
        left = [token for token in ALLOWED if (*words[1 - blocked :], token) not in seen]
        words.append(max(left, key=lambda token: log_probs[token].item()))
        total += log_probs[words[-1]].item()
    return tuple(words), total


@pytest.mark.parametrize(("fusion", "blocked"), [*((f, 0) for f in FUSIONS), ("gate", 3)])
def test_beam_of_one_equals_greedy_decoding(tiny, images, fusion, blocked):
    captioner = _repetitive(tiny, fusion) if blocked else tiny(fusion=fusion)
    how = {"beam_size": 1, "max_length": 12, "no_repeat_ngram": blocked}
    beams = search(captioner, images.encoded(captioner), **how)
    for number in range(3):
        tokens, log_prob = _greedy(
            captioner, encode_alone(captioner, images, number), blocked=blocked
        )
        (best,) = beams[number]
        assert best.tokens == tokens
        assert best.log_prob == best.score == pytest.approx(log_prob, abs=1e-10)


SETTINGS = [
    {},
    {"length_penalty": 0.7},
    {"length_penalty": 1.0},
    {"no_repeat_ngram": 2},
    {"beam_size": 6, "groups": 3, "diversity": 0.8},
]


@pytest.mark.parametrize("settings", SETTINGS)
def test_log_probabilities_equal_teacher_forcing_and_scores_rank_the_captions(
    tiny, images, settings
):
    captioner = tiny()
    memory = images.encoded(captioner)
    for number, image in enumerate(search(captioner, memory, max_length=7, **settings)):
        assert "groups" in settings or len({hypothesis.tokens for hypothesis in image}) == 5
        scores = [hypothesis.score for hypothesis in image]
        assert scores == sorted(scores, reverse=True)
        for hypothesis in image:
            caption = torch.zeros(3, 1, 7, dtype=torch.int64)
            caption[number, 0, : len(hypothesis.tokens)] = torch.tensor(hypothesis.tokens)
            scored = captioner.score(memory, caption).log_probs[number].sum().item()
            assert hypothesis.log_prob == pytest.approx(scored, abs=1e-10)
            length = len(hypothesis.tokens) ** settings.get("length_penalty", 0.0)
            assert hypothesis.score == pytest.approx(hypothesis.log_prob / length)


@pytest.mark.parametrize("length_penalty", [0.0, 0.7, 2.0])
def test_beam_as_wide_as_all_captions_equals_exhaustive_search(tiny, images, length_penalty):
    captioner = tiny()
    memory = encode_alone(captioner, images, 0)
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
    (hypotheses,) = search(
        captioner,
        memory,
        beam_size=27,
        max_length=3,
        length_penalty=length_penalty,
        forbidden=forbidden,
    )
    assert [h.tokens for h in hypotheses] == sorted(scores, key=lambda caption: -scores[caption])
    for hypothesis in hypotheses:
        assert hypothesis.score == pytest.approx(scores[hypothesis.tokens], abs=1e-10)


def test_pad_bos_and_unk_are_generated_only_if_allowed(tiny, images):
    captioner = tiny()
    captioner.decoder.output.bias.data[[0, 1, 3]] += 100
    memory = images.encoded(captioner)
    for image in search(captioner, memory):
        assert not {0, 1, 3} & {token for h in image for token in h.tokens}
    allowed = search(captioner, memory, beam_size=1, max_length=4, forbidden=(0, 1))
    assert allowed[0][0].tokens == (3, 3, 3, 3)


@pytest.mark.slow
@pytest.mark.parametrize("length", [1, 2, 3])
def test_blocked_ngrams_are_not_repeated(tiny, images, length):
    captioner = _repetitive(tiny)
    memory = images.encoded(captioner)
    plain = search(captioner, memory, max_length=9)
    assert any(
        len(set(_ngrams(h.tokens, length))) < len(_ngrams(h.tokens, length))
        for p in plain
        for h in p
    )
    for image in search(captioner, memory, max_length=9, no_repeat_ngram=length):
        assert len(image) == 5
        for hypothesis in image:
            runs = _ngrams(hypothesis.tokens, length)
            assert len(set(runs)) == len(runs)


def _diverse(captioner, memory, *, groups, size, max_length, diversity):
    """Run diverse beam search of one image in plain Python, without a cache."""
    beams = [[((), 0.0)] for _ in range(groups)]
    for _ in range(max_length):
        counts = dict.fromkeys(range(11), 0)
        for number, group in enumerate(beams):
            candidates = []
            for words, total in group:
                if words[-1:] == (2,):
                    candidates.append((total, words, total, None))
                    continue
                log_probs = captioner(memory, torch.tensor([[[1, *words]]]))[0, 0, -1].tolist()
                for token in ALLOWED:
                    extended = total + log_probs[token]
                    rank = extended - diversity * counts[token]
                    candidates.append((rank, (*words, token), extended, token))
            best = sorted(candidates, key=lambda candidate: -candidate[0])[:size]
            beams[number] = [(words, total) for _, words, total, _ in best]
            for *_, token in best:
                if token is not None:
                    counts[token] += 1
    return sorted((pair for group in beams for pair in group), key=lambda pair: -pair[1])


@pytest.mark.slow
@pytest.mark.parametrize(("groups", "size"), [(2, 2), (3, 1), (2, 3)])
@pytest.mark.parametrize("diversity", [0.3, 2.0])
def test_diverse_groups_equal_an_uncached_reference_search(tiny, images, groups, size, diversity):
    captioner = tiny()
    beams = search(
        captioner,
        images.encoded(captioner),
        beam_size=groups * size,
        max_length=5,
        groups=groups,
        diversity=diversity,
    )
    for number in range(3):
        memory = encode_alone(captioner, images, number)
        expected = _diverse(
            captioner, memory, groups=groups, size=size, max_length=5, diversity=diversity
        )
        assert sorted(h.tokens for h in beams[number]) == sorted(words for words, _ in expected)
        assert [h.log_prob for h in beams[number]] == pytest.approx(
            [total for _, total in expected], abs=1e-10
        )


class Scripted:
    """A captioner with the same log-probabilities at every step, which it counts."""

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


def _empty_memory(images: int) -> Memory:
    return Memory(torch.zeros(images, 1, 1), torch.ones(images, 1, dtype=torch.bool), ())


def test_ties_go_to_the_earlier_beam_and_the_smaller_token():
    captioner = Scripted([0, 0, 0, 0, 0.25, 0.25, 0.25, 0.25])
    beams = search(captioner, _empty_memory(2), beam_size=3, max_length=2)
    expected = [(4, 4), (4, 5), (4, 6)]
    assert [[h.tokens for h in image] for image in beams] == [expected, expected]


class Chained(Scripted):
    """Log-probabilities of the next of 3,000 tokens by the token before, from 16 rows."""

    def __init__(self, table: torch.Tensor):
        self.table = table
        self.vocabulary_size = table.shape[1]

    def step(self, tokens, state, *, attention=False):
        return StepOutput(self.table[tokens % 16], None, state)


def _search_by_sorting(table, *, beam_size, max_length):
    """Run beam search by sorting all continuations, ties by beam, then by token."""
    beams = [((), 0.0)]
    for _ in range(max_length):
        candidates = []
        for beam, (words, total) in enumerate(beams):
            if words[-1:] == (2,):
                candidates.append((-total, beam, 0, words))
                continue
            line = table[(words[-1] if words else 1) % 16]
            extended = (line + torch.tensor(total)).tolist()
            candidates += [
                (-extended[token], beam, token, (*words, token))
                for token in (2, *range(4, len(line)))
            ]
        beams = [(words, -lost) for lost, _, _, words in sorted(candidates)[:beam_size]]
    return beams


@pytest.mark.parametrize("spread", ["uneven", "with many ties"])
def test_search_in_a_large_vocabulary_equals_a_full_sort(spread):
    torch.manual_seed(0)
    logits = torch.randn(16, 3000)
    logits[::2, -20:] += 2  # tokens after the last whole block
    table = logits.log_softmax(dim=1)
    if spread == "with many ties":
        table = (table * 4).round() / 4
    captioner = Chained(table)
    beams = search(captioner, _empty_memory(2), beam_size=4, max_length=4)
    expected = _search_by_sorting(table, beam_size=4, max_length=4)
    for image in beams:
        assert [(h.tokens, h.log_prob) for h in image] == expected


@pytest.mark.parametrize("select", [_top_k, _top_k_by_keys])
@given(
    values=st.lists(st.sampled_from([-torch.inf, -3.5, -1e-40, -0.0, 0.0, 0.1]), min_size=14),
    seed=st.integers(0, 2**32),
    count=st.integers(1, 7),
)
def test_the_top_scores_equal_those_of_a_stable_sort(select, values, seed, count):
    ties = torch.tensor(values[: len(values) // 2 * 2]).reshape(2, -1)
    drawn = torch.randn(2, 40, generator=torch.Generator().manual_seed(seed))
    for scores in (ties, drawn, drawn.round(), drawn.bfloat16().float()):
        expected = scores.sort(dim=1, descending=True, stable=True).indices[:, :count]
        assert torch.equal(select(scores, count), expected)


def test_finished_beams_stop_the_loop():
    captioner = Scripted([0, 0, 0.9, 0, 0.1])
    (hypotheses,) = search(captioner, _empty_memory(1), beam_size=2, max_length=20)
    assert [h.tokens for h in hypotheses] == [(2,), (4, 2)]
    assert captioner.steps == 2


class Timed(Scripted):
    """A captioner whose images end at the step that their state contains; it counts rows."""

    def __init__(self, probabilities: list[float]):
        super().__init__(probabilities)
        self.rows: list[int] = []

    def step(self, tokens, state, *, attention=False):
        self.rows.append(len(tokens))
        ends = state.memory.states[:, 0].repeat_interleave(state.rows_per_image, dim=0)
        end = torch.full_like(self.log_probs, -torch.inf).index_fill(0, torch.tensor(2), 0.0)
        log_probs = torch.where(ends <= len(self.rows), end, self.log_probs)
        return StepOutput(log_probs, None, state)


def test_images_without_open_beams_leave_the_batch():
    ends, probabilities = [5, 2, 3], [0, 0, 0, 0, 0.6, 0.4]
    memory = replace(_empty_memory(3), states=torch.tensor(ends).reshape(3, 1, 1))
    captioner = Timed(probabilities)
    beams = search(captioner, memory, beam_size=2)
    assert captioner.rows == [3, 6, 4, 2, 2]  # one row an image at first
    assert [len(image[0].tokens) for image in beams] == ends
    for number, image in enumerate(beams):
        alone = search(Timed(probabilities), memory.select(torch.tensor([number])), beam_size=2)
        assert alone == [image]
