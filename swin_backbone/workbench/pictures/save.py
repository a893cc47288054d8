"""Write figures and pages."""

import html
import io
from pathlib import Path

from matplotlib.figure import Figure

from ...whole_files import write_whole

SUFFIXES = ('.png', '.html')

TEMPLATE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>{title}</title><style>svg {{ max-width: 100%; height: auto; }}</style></head>
<body>{drawing}</body>
</html>
"""


def save_figure(figure: Figure, path: Path, dpi: int = 100) -> None:
    """Write a figure as a PNG, or as an HTML page without other files.

    Raises:
        ValueError: if the path has another suffix.
    """
    if path.suffix not in SUFFIXES:
        raise ValueError(f'a picture is written as {" or ".join(SUFFIXES)}, got {str(path)!r}')
    buffer = io.BytesIO()
    figure.savefig(buffer, format='png' if path.suffix == '.png' else 'svg', dpi=dpi)
    data = buffer.getvalue()
    if path.suffix == '.html':
        title = html.escape(figure.get_suptitle() or path.stem)
        data = TEMPLATE.format(title=title, drawing=data[data.index(b'<svg') :].decode()).encode()
    write_whole(path, data)
