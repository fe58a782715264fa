"""The error of captioners, decoding and rewards that a user can cause."""


class ModelError(ValueError):
    """A setting, size or input that the model cannot use; the message states what to do."""


class PlugInError(ModelError):
    """A kind of captioner, or code outside a2, that is unknown, not trusted, or not usable."""
