"""Captioners in pure PyTorch.

Letters, the same in every module: B images, K captions per image (or beams), N = B * K rows of
the decoder, R regions per image, F region feature width, L caption length in tokens, Q queries
of an attention (K * L under teacher forcing, K in a step), D model width, H attention heads,
d = D / H head width, V vocabulary size. Names of masks state what True means: `region_mask` is True
where a region exists, `is_padding` where a token does not.

theta is every parameter that the caption loss trains, theta_m those of the mask networks.
"""
