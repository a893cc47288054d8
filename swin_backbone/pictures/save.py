"""Write figures and pages."""

import html
import io
from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure

from ..whole_files import write_whole

SUFFIXES = ('.png', '.html')

PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>{title}</title><style>svg {{ max-width: 100%; height: auto; }}</style></head>
<body>{drawing}</body>
</html>
"""


def save_figure(figure: Figure, path: Path, dpi: int = 100, write: Callable[[Path, bytes], None] = write_whole) -> None:
    """Write a figure as a PNG, or as an HTML page without other files.

    Args:
        write: writes bytes to a path.

    Raises:
        ValueError: if the path has another suffix.
    """
    if path.suffix not in SUFFIXES:
        raise ValueError(f'a picture is written as {" or ".join(SUFFIXES)}, got {str(path)!r}')
    buffer = io.BytesIO()
    if path.suffix == '.png':
        figure.savefig(buffer, format='png', dpi=dpi)
    else:
        figure.savefig(buffer, format='svg', dpi=dpi)
        drawing = buffer.getvalue().decode()
        title = html.escape(figure.get_suptitle() or path.stem)
        page = PAGE.format(title=title, drawing=drawing[drawing.index('<svg') :])
        buffer = io.BytesIO(page.encode())
    write(path, buffer.getvalue())
