"""Rewards in the form of TRL's reward functions, and scores without torch."""

import subprocess
import sys

import pytest

from a2cap import rewards
from a2cap.pipeline.metrics import cider
from a2cap.pipeline.metrics.all_metrics import score
from a2cap.pipeline.metrics.cider import CorpusFrequencies
from tests.data.messages import message_of

COMPLETIONS = ["a red dog runs", "a cat", "two red dogs", "Cats!"]
REFERENCES = [["A red dog runs.", "the dog runs"], ["two cats", "a cat sleeps"]] * 2


def test_rewards_are_the_metrics_of_single_captions():
    expected = score(
        {"1": "a red dog runs", "2": "a cat"},
        {"1": ["a red dog runs", "the dog runs"], "2": ["two cats", "a cat sleeps"]},
        metrics=["CIDEr", "Bleu_4", "METEOR"],
    )
    rows = expected.per_image.values()
    for reward, values in (
        (rewards.cider, [row["CIDEr"] for row in rows]),
        (rewards.bleu, [row["Bleu_4"] for row in rows]),
        # METEOR stands in for SPICE
        (rewards.spider_without_spice, [(row["CIDEr"] + row["METEOR"]) / 2 for row in rows]),
    ):
        returned = reward(COMPLETIONS[:2], REFERENCES[:2], prompts=["p"] * 2)
        assert returned == pytest.approx(values)
        assert reward is rewards.bleu or min(values) > 0


def test_conversations_are_rewarded_by_their_last_message():
    messages = [[{"role": "assistant", "content": text}] for text in COMPLETIONS]
    assert rewards.bleu(messages, references=REFERENCES) == rewards.bleu(COMPLETIONS, REFERENCES)


def test_repeated_generations_do_not_change_the_rewards():
    twice = rewards.cider(COMPLETIONS * 2, REFERENCES * 2)
    assert twice == pytest.approx(rewards.cider(COMPLETIONS, REFERENCES) * 2)


def test_frequencies_of_coco_reward_a_batch_of_one_image(monkeypatch):
    frequencies = CorpusFrequencies.count([["the dog"]] * 9)
    monkeypatch.setattr(cider, "coco_frequencies", lambda: frequencies)
    good, bad = rewards.cider(["a red dog runs", "a cat"], [REFERENCES[0]] * 2, idf="coco")
    assert good > bad


def test_unusable_batches_are_rejected():
    assert message_of(rewards.cider, ["a", "b"], [["a dog"]] * 2) == (
        "CIDEr-D needs references of two images or more in a batch; raise the batch size"
    )
    assert message_of(rewards.bleu, ["a", "b"], [["a dog"]]) == (
        "2 completions have 1 lists of references; give each completion a list of one or more"
    )


def test_scoring_imports_no_torch():
    code = (
        "import sys, a2cap, a2cap.rewards; a2cap.score(['a dog'], [['a dog']], metrics=['Bleu_1']);"
        "print('torch' in sys.modules)"
    )
    finished = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert finished.stdout == "False\n"
