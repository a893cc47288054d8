"""The type of a height and width."""

Size = tuple[int, int]  # (height, width)
