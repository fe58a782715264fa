import torch

from a2cap.model.layers.kv_cache import KVCache

N, H, D = 3, 2, 4


def test_appending_adds_one_token_and_leaves_the_old_cache_unchanged():
    keys, values = torch.randn(N, H, 2, D), torch.randn(N, H, 2, D)
    next_keys, next_values = torch.randn(N, H, 1, D), torch.randn(N, H, 1, D)
    cache = KVCache(keys, values)
    extended = cache.append(next_keys, next_values)
    assert torch.equal(extended.keys, torch.cat((keys, next_keys), dim=2))
    assert torch.equal(extended.values, torch.cat((values, next_values), dim=2))
    assert cache.keys.shape == (N, H, 2, D)
