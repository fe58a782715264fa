"""Disk space of a feature store, checked by preflight and again before the first image."""

from a2cap.data.errors import StoreError


def check_feature_space(least: int, most: int, *, free: int) -> str:
    """Return the estimate of a store's bytes as text; raise StoreError if `least` exceeds `free`.

    Only the minimum counts: a store whose number of regions is not known must not be rejected.
    """
    if least > free:
        raise StoreError(
            f"disk too small for the features: at least {least / 1e9:.1f} GB needed, "
            f"{free / 1e9:.1f} GB free; free disk space, or lower extract.min_regions"
        )
    return f"features take {least / 1e9:.1f} to {most / 1e9:.1f} GB, {free / 1e9:.1f} GB free"
