"""A height and width: the type, the offsets between the places of a window, the words in a message."""

Size = tuple[int, int]  # (height, width)


def count_offsets(window_size: Size) -> int:
    """Return the rows of the relative position bias table of a window."""
    return (2 * window_size[0] - 1) * (2 * window_size[1] - 1)


def format_size(size: Size) -> str:
    """Return a size as HxW, for messages."""
    return f'{size[0]}x{size[1]}'
