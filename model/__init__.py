"""Captioners in pure PyTorch.

Letters, the same in every module: B pictures, K captions per picture (or beams), N = B * K rows of
the decoder, R regions per picture, F region feature width, L caption length in tokens, D model
width, H attention heads, V vocabulary size. Masks are named by what True means: `region_mask`
is True where a region exists, `is_padding` where a token does not.
"""
