"""The cached stages, from calibrate to evaluate."""
