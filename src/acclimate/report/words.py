"""Names as a person would write them."""

__all__ = ["spoken"]


def spoken(name: str) -> str:
    """Return a name of ours in words.

    >>> spoken("gaussian_noise")
    'gaussian noise'
    >>> spoken("jpeg_compression")
    'JPEG compression'
    """
    return name.replace("_", " ").replace("jpeg", "JPEG")
