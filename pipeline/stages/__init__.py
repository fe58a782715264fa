"""The four cached stages: extract, preprocess, train, evaluate."""
