"""Captioners that decode token by token with an LSTM or a GRU."""
