"""Explorer of windows: one HTML file, which needs no network."""

import json
from pathlib import Path

from ...positions import Size

PAGE = Path(__file__).with_name('explorer.html')


def explorer_html(
    image_size: Size,
    window_size: Size = (7, 7),
    stage: int = 1,
    shifted: bool = True,
    mask_padding: bool = False,
    small_map: str = 'pad',
) -> str:
    """Return a page with each token's window, partners, region, row of the mask, and place after the roll.

    The arguments are the initial values of the page's fields.

    Args:
        image_size: (height, width) in pixels.
        window_size: (height, width) in tokens.
        stage: from 1 to 4.
        shifted: of a block with shifted windows.
        mask_padding, small_map: see `SwinBackbone`.
    """
    settings = dict(
        height=image_size[0],
        width=image_size[1],
        stage=stage,
        windowHeight=window_size[0],
        windowWidth=window_size[1],
        shifted=shifted,
        maskPadding=mask_padding,
        smallMap=small_map,
    )
    return PAGE.read_text(encoding='utf-8').replace('__SETTINGS__', json.dumps(settings))
