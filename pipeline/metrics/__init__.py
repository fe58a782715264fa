"""Caption metrics: BLEU, METEOR, ROUGE-L, CIDEr and SPICE."""
