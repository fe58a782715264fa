"""Rewards in a trainer of TRL; needs `pip install trl`, which is no dependency."""

from functools import partial

import pytest

from a2cap import rewards

trl = pytest.importorskip("trl", reason="no trl")

WORDS = ["<pad>", "<eos>", "caption", ":", "a", "red", "dog", "runs", "two", "cats", "sleep", "the"]


@pytest.fixture
def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({word: n for n, word in enumerate(WORDS)}, "<pad>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")


@pytest.fixture
def model():
    from transformers import GPT2Config, GPT2LMHeadModel

    ends = {"bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0}
    config = GPT2Config(
        vocab_size=len(WORDS), n_positions=32, n_embd=8, n_layer=1, n_head=2, **ends
    )
    return GPT2LMHeadModel(config)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # transformers warns of its own options
def test_group_relative_policy_optimization_takes_the_rewards(model, tokenizer, tmp_path):
    from datasets import Dataset

    rows = {
        "prompt": ["caption : a", "caption : the"],
        "references": [["a red dog runs", "the dog runs"], ["two cats sleep", "the cats"]],
    }
    trainer = trl.GRPOTrainer(
        model=model,
        reward_funcs=[partial(rewards.cider, idf="references"), rewards.spider_without_spice],
        args=trl.GRPOConfig(
            str(tmp_path),
            max_steps=1,
            num_generations=2,
            per_device_train_batch_size=4,
            max_completion_length=6,
            use_cpu=True,
            bf16=False,
            report_to=[],
            logging_steps=1,
        ),
        train_dataset=Dataset.from_dict(rows),
        processing_class=tokenizer,
    )
    trainer.train()
    logged = trainer.state.log_history[0]
    assert 0 <= logged["rewards/spider_without_spice/mean"] <= 5.5
    assert 0 <= logged["rewards/cider/mean"] <= 10
