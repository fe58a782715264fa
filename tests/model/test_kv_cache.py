"""The KV cache: rows of an image share a pool of keys, and each attends to its own tokens."""

import pytest
import torch

from tests.model.kinds import make

CACHED = ["transformer", "get", "m2", "spatial"]


def _encoded(captioner):
    """Encode two images of four and two regions."""
    torch.manual_seed(1)
    exists = torch.tensor([[True] * 4, [True, True, False, False]])
    features, boxes = torch.rand(2, 4, 6).double(), torch.rand(2, 4, 5).double()
    return captioner.encode(features, boxes, exists)


def _drawn_steps(count, rows):
    """Draw tokens of each step, and rows that each continues: one an image at first."""
    generator = torch.Generator().manual_seed(0)
    source, steps = torch.arange(2).repeat_interleave(rows), [torch.ones(2, dtype=torch.int64)]
    sources = []
    for _ in range(count):
        sources.append(source)
        steps.append(torch.randint(4, 11, (2 * rows,), generator=generator))
        within = torch.randint(0, rows, (2, rows), generator=generator)
        source = (within + rows * torch.arange(2)[:, None]).flatten()
    return steps, sources


@pytest.mark.parametrize("kind", CACHED)
@torch.no_grad()
def test_beams_reordered_at_each_step_equal_teacher_forcing_beyond_the_first_pool(kind):
    captioner = make(kind)
    memory = _encoded(captioner)
    steps, sources = _drawn_steps(30, rows=3)
    state, history, shapes = captioner.start(memory, 1), steps[0][:, None], set()
    for number, tokens in enumerate(steps):
        output = captioner.step(tokens, state)
        shapes.add(output.state.cache.bias.shape)
        if number == len(sources):
            break
        state = output.state.reorder(sources[number])
        history = torch.cat((history[sources[number]], steps[number + 1][:, None]), dim=1)
    expected = captioner(memory, history.reshape(2, 3, -1))[:, :, -1].flatten(0, 1)
    torch.testing.assert_close(output.log_probs, expected, rtol=0, atol=1e-10)
    # one row an image, then pools for 20 and 40 steps
    assert shapes == {(2, 24), (6, 24), (6, 64), (6, 120)}


@torch.no_grad()
def test_two_states_that_continue_one_do_not_meet():
    captioner = make("transformer")
    memory = _encoded(captioner)
    first = captioner.step(torch.tensor([1, 1]), captioner.start(memory, 1)).state
    pair = [torch.tensor([4, 5]), torch.tensor([6, 7])]
    states = [captioner.step(tokens, first).state for tokens in pair]
    for tokens, state in zip(pair, states, strict=True):
        history = torch.stack((torch.tensor([1, 1]), tokens, torch.tensor([8, 9])), dim=1)
        expected = captioner(memory, history[:, None])[:, 0, -1]
        actual = captioner.step(history[:, 2], state).log_probs
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)


def test_a_step_moves_no_key_of_an_earlier_token():
    captioner = make("transformer")
    with torch.no_grad():
        state = captioner.step(torch.ones(2).long(), captioner.start(_encoded(captioner), 1)).state
        state = state.reorder(torch.tensor([0, 0, 1, 1]))
        states = [state := captioner.step(torch.ones(4).long(), state).state for _ in range(2)]
    reordered = states[-1].reorder(torch.tensor([1, 1, 3, 2]))
    pools = [[pool.data_ptr() for pool in s.cache.pools] for s in (*states, reordered)]
    assert all(pool == pools[0] for pool in pools)
    # rows of both images: the first attends to the second's tokens now
    own = [row.nonzero().flatten().tolist() for row in reordered.cache.bias == 0]
    assert own == [[0, 2, 4], [0, 2, 4], [0, 2, 4], [0, 1, 3]]


@pytest.mark.slow  # the first compilation imports torch's compiler
@pytest.mark.parametrize("kind", CACHED)
@torch.no_grad()
def test_a_step_is_one_graph_for_each_shape(kind, monkeypatch):
    captioner = make(kind)
    memory = _encoded(captioner)
    graphs = []

    def keep(graph, inputs):
        graphs.append(graph)
        return graph

    torch.compiler.reset()
    compiled = torch.compile(captioner.decoder.advance, fullgraph=True, dynamic=False, backend=keep)
    steps, sources = _drawn_steps(18, rows=3)
    states = {False: captioner.start(memory, 1), True: captioner.start(memory, 1)}
    eager = captioner.decoder.advance
    for tokens, source in zip(steps, sources, strict=False):
        outputs = {}
        for is_compiled in (False, True):
            monkeypatch.setattr(captioner.decoder, "advance", compiled if is_compiled else eager)
            outputs[is_compiled] = captioner.step(tokens, states[is_compiled])
            states[is_compiled] = outputs[is_compiled].state.reorder(source)
        torch.testing.assert_close(outputs[True].log_probs, outputs[False].log_probs)
    assert len(graphs) == 3


@torch.no_grad()
def test_rows_that_begin_apart_have_pools_of_their_own_and_can_be_reordered():
    captioner = make("transformer")
    memory = _encoded(captioner)
    state = captioner.start(memory, 3)
    steps = torch.randint(4, 11, (3, 6), generator=torch.Generator().manual_seed(0))
    index, history = torch.tensor([2, 0, 0, 3, 5, 4]), steps[:1].T
    for number, tokens in enumerate(steps):
        output = captioner.step(tokens, state)
        # one pool a row, so that memory grows with the rows and not with their square
        assert output.state.cache.bias.shape == (6, 24)
        state = output.state.reorder(index)
        if number < 2:
            history = torch.cat((history[index], steps[number + 1][:, None]), dim=1)
    expected = captioner(memory, history.view(2, 3, -1))[:, :, -1].flatten(0, 1)
    torch.testing.assert_close(output.log_probs, expected, rtol=0, atol=1e-10)
    kept = captioner.step(steps[0], output.state.select(torch.tensor([1, 0]))).log_probs
    swapped = captioner.step(steps[0].roll(3), output.state).log_probs.roll(3, 0)
    torch.testing.assert_close(kept, swapped, rtol=0, atol=1e-10)
