"""Pictures of windows, attention masks and position bias tables, as matplotlib figures; no display is needed.

Layout: H W height and width of a map, N places of a window, h heads.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import ListedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray
from torch import Tensor

from ...sizes import Size
from .layout import PADDING, REGIONS, WindowLayout

# By Okabe and Ito, also for the colour-blind: the four regions, and padding.
REGION_COLOURS = ('#56B4E9', '#E69F00', '#009E73', '#CC79A7', '#DDDDDD')
KIND_COLOURS = ('#FFFFFF', '#E69F00', '#009E73', '#CC79A7', '#F0E442', '#0072B2', '#D55E00', '#56B4E9', '#999999')
WINDOW_COLOURS = ('#D6ECFA', '#A8D5F2')
MASK_COLOURS = ListedColormap(['#222222', '#F0E442'])  # masked, may attend
ATTENDED = '#F0E442'
LARGEST_MOSAIC = 1200  # pixels of a side, of the picture of all masks
TOKEN_LINES = 40  # tokens of a side; larger maps have no lines between tokens


def windows_figure(layout: WindowLayout) -> Figure:
    """Draw a map with its windows and padding and, for a shifted block, the rolled map with regions and kinds."""
    diagonal_HW = np.add(*divmod(layout.window_HW, layout.kind_RC.shape[1]))  # row + column of the window
    plain = np.array([to_rgb(colour) for colour in WINDOW_COLOURS])[diagonal_HW % 2]
    regions = np.array([to_rgb(colour) for colour in REGION_COLOURS])[layout.region_HW]
    kinds = np.array([to_rgb(colour) for colour in KIND_COLOURS])[layout.kind_RC.ravel()[layout.window_HW]]
    is_shifted = any(layout.shift)
    has_kinds = len(layout.kinds) > 1
    H, W = layout.size
    map_HW3 = layout.roll_back(regions if is_shifted else plain)
    panels = [(f'The map of {H}x{W} tokens\nand its windows', map_HW3, True)]
    if is_shifted:
        up, left = layout.shift
        panels.append((f'Rolled up by {up} and left by {left}:\nwindows tile it', regions, False))
    if has_kinds:
        panels.append((f'{len(layout.kinds)} kinds of windows\nhave different masks', kinds, False))
    figure, axes = _make_panels(len(panels), layout.token_HW.shape)
    for axis, (title, colours_HW3, on_image) in zip(axes, panels):
        arrange = layout.roll_back if on_image else np.asarray
        _draw_map(axis, colours_HW3, arrange(layout.window_HW), arrange(layout.token_HW) == PADDING)
        axis.set_title(title, fontsize=10)
    drawn_regions = np.unique(layout.region_HW) if is_shifted else ()
    handles = [Patch(facecolor=REGION_COLOURS[i], label=f'region: {REGIONS[i]}') for i in drawn_regions if i < 4]
    for kind, colour in zip(layout.kinds if has_kinds else (), KIND_COLOURS):
        handles.append(Patch(facecolor=colour, edgecolor='black', label=f'kind: {kind.name}'))
    _draw_legend(figure, layout, handles)
    Wh, Ww = layout.window_size
    block = 'A block with shifted windows' if is_shifted else 'A block without shift'
    padded = 'x'.join(map(str, layout.token_HW.shape))
    figure.suptitle(
        f'{block}: {layout.kind_RC.size} windows of {Wh}x{Ww}, the map padded to {padded}', fontsize=12, wrap=True
    )
    return figure


def masks_figure(layout: WindowLayout) -> Figure:
    """Draw the attention mask and the windows of each kind, and the masks of all windows."""
    kinds = layout.kinds
    Wh, Ww = layout.window_size
    figure, axes = _make_panels(len(kinds) + 1, layout.token_HW.shape, rows=2)
    for index, kind in enumerate(kinds):
        is_kind_RC = layout.kind_RC == index
        upper, lower = axes[index], axes[len(kinds) + 1 + index]
        upper.imshow(kind.mask_NN, cmap=MASK_COLOURS, vmin=0, vmax=1, interpolation='nearest')
        masked = 1 - kind.mask_NN.mean()
        upper.set_title(f'{kind.name}\n{masked:.0%} of pairs masked', fontsize=9)
        upper.set_xlabel('key', fontsize=8)
        upper.set_ylabel('query', fontsize=8)
        upper.tick_params(labelsize=7)
        chosen_HW = is_kind_RC.ravel()[layout.window_HW]
        colours = np.where(chosen_HW[..., None], to_rgb(ATTENDED), to_rgb('#FFFFFF'))
        _draw_map(lower, colours, layout.window_HW, layout.token_HW == PADDING)
        lower.set_title(f'{is_kind_RC.sum()} of {is_kind_RC.size} windows', fontsize=9)
    stack_bytes, kind_bytes = count_mask_bytes(layout)
    axes[len(kinds)].imshow(make_mosaic(layout), cmap=MASK_COLOURS, vmin=0, vmax=1, interpolation='nearest')
    axes[len(kinds)].set_title(f'all {layout.kind_RC.size} masks,\nwindow by window', fontsize=9)
    axes[len(kinds)].set_xticks([])
    axes[len(kinds)].set_yticks([])
    axes[-1].set_axis_off()
    N = Wh * Ww
    figure.suptitle(
        f'Attention masks of a block {"with shifted windows" if any(layout.shift) else "without shift"}\n'
        f'map {layout.size[0]}x{layout.size[1]}, window {Wh}x{Ww}: {layout.kind_RC.size} masks of {N}x{N}, '
        f'of {len(kinds)} kinds: {stack_bytes / 1024:,.0f} KiB as float32, '
        f'or {kind_bytes / 1024:,.1f} KiB for a bool mask of each kind',
        fontsize=12,
        wrap=True,
    )
    handles = [Patch(color=MASK_COLOURS(1), label='may attend'), Patch(color=MASK_COLOURS(0), label='masked')]
    _draw_legend(figure, layout, handles)
    return figure


def count_mask_bytes(layout: WindowLayout) -> tuple[int, int]:
    """Return the bytes of a mask for each window in float32, and of a bool mask for each kind."""
    N = layout.window_size[0] * layout.window_size[1]
    return layout.kind_RC.size * N * N * 4, sum(kind.mask_NN.nbytes for kind in layout.kinds if kind.name != 'interior')


def make_mosaic(layout: WindowLayout) -> NDArray[Any]:
    """Return the masks of all windows in the places of the windows, for large maps every n-th query and key."""
    rows, columns = layout.kind_RC.shape
    N = layout.window_size[0] * layout.window_size[1]
    step = -(-N * max(rows, columns) // LARGEST_MOSAIC)
    small: NDArray[Any] = np.stack([kind.mask_NN[::step, ::step] for kind in layout.kinds])[layout.kind_RC]
    return small.transpose(0, 2, 1, 3).reshape(rows * small.shape[2], -1)


def bias_figure(tables: Sequence[tuple[str, Tensor, Size]], title: str) -> Figure:
    """Draw relative position bias tables as maps over the offset of the key from the query, for each head.

    Args:
        tables: for each row of the figure a title, a table ((2Wh-1)*(2Ww-1), h), and (Wh, Ww).
    """
    heads = tables[0][1].shape[1]
    shown = min(heads, 8)
    rows = -(-heads // shown)
    figure = Figure(
        figsize=(max(6.4, 1.4 * shown + 1.2), (1.45 * rows + 0.4) * len(tables) + 0.6), layout='constrained'
    )
    limit = max(float(table_Rh.abs().max()) for _, table_Rh, _ in tables) or 1.0
    lowest = 0.0 if min(float(table_Rh.min()) for _, table_Rh, _ in tables) >= 0 else -limit
    colours = 'viridis' if lowest == 0 else 'PuOr'
    subfigures: Any = figure.subfigures(len(tables), 1, squeeze=False)
    for subfigure, (name, table_Rh, (Wh, Ww)) in zip(subfigures.ravel(), tables):
        subfigure.suptitle(name, fontsize=9, wrap=True)
        grid = subfigure.subplots(rows, shown, squeeze=False).ravel()
        for head, axis in enumerate(grid):
            if head >= heads:
                axis.set_axis_off()
                continue
            # The offsets of a table are query minus key. Turned, the middle is the query, and the places are keys.
            map_YX = table_Rh[:, head].detach().float().cpu().numpy().reshape(2 * Wh - 1, 2 * Ww - 1)[::-1, ::-1]
            extent = (0.5 - Ww, Ww - 0.5, Wh - 0.5, 0.5 - Wh)
            image = axis.imshow(map_YX, cmap=colours, vmin=lowest, vmax=limit, extent=extent, interpolation='nearest')
            axis.set_title(f'head {head + 1}', fontsize=8)
            axis.set_xticks([1 - Ww, 0, Ww - 1])
            axis.set_yticks([1 - Wh, 0, Wh - 1])
            axis.tick_params(labelsize=6, length=2)
        subfigure.colorbar(image, ax=list(grid), shrink=0.8).ax.tick_params(labelsize=7)
    figure.suptitle(title, fontsize=11, wrap=True)
    figure.supxlabel('offset of the key from the query, in tokens: right, down', fontsize=8)
    return figure


def _make_panels(columns: int, map_shape: tuple[int, ...], rows: int = 1) -> tuple[Figure, list[Axes]]:
    height, width = map_shape
    side = min(4.2, max(2.0, 10 / columns))  # 10 inches: legible on a page of the documentation
    tall = side if rows > 1 else side * min(1.6, max(0.55, height / width))
    figure = Figure(figsize=(max(side * columns, 5.6) + 0.4, tall * rows + 1.5), layout='constrained')
    return figure, list(np.ravel(figure.subplots(rows, columns)))


def _draw_map(axis: Axes, colours_HW3: NDArray[Any], number_HW: NDArray[Any], padding_HW: NDArray[Any]) -> None:
    """Draw tokens in their colours, borders between the windows of `number_HW`, and hatched padding."""
    height, width = number_HW.shape
    axis.imshow(colours_HW3, interpolation='nearest')
    if padding_HW.any():  # a contour runs through centres of cells: double the cells, to reach the edges
        y, x = ((np.arange(side)[:, None] + [-0.499, 0.499]).ravel() for side in (height, width))
        axis.contourf(x, y, padding_HW.repeat(2, 0).repeat(2, 1), levels=[0.5, 1.5], hatches=['////'], colors='none')
    if max(height, width) <= TOKEN_LINES:
        token_HW = np.arange(height * width).reshape(height, width)
        axis.add_collection(LineCollection(_find_borders(token_HW), colors='white', linewidths=0.5))
    line_width = 1.2 if height < 100 else 0.5
    axis.add_collection(LineCollection(_find_borders(number_HW), colors='black', linewidths=line_width))
    axis.set_xticks([0, width - 1])
    axis.set_yticks([0, height - 1])
    axis.tick_params(labelsize=8)


def _find_borders(number_HW: NDArray[Any]) -> list[list[tuple[float, float]]]:
    """Return the lines between neighbours with different numbers."""
    across = np.argwhere(number_HW[:, 1:] != number_HW[:, :-1])
    down = np.argwhere(number_HW[1:] != number_HW[:-1])
    lines = [[(x + 0.5, y - 0.5), (x + 0.5, y + 0.5)] for y, x in across]
    return lines + [[(x - 0.5, y + 0.5), (x + 0.5, y + 0.5)] for y, x in down]


def _draw_legend(figure: Figure, layout: WindowLayout, handles: list[Patch]) -> None:
    """Draw a legend below the panels, with padding if the map has padding."""
    if (layout.token_HW == PADDING).any():
        handles = [*handles, Patch(facecolor='white', edgecolor='black', hatch='////', label='padding')]
    if handles:
        columns = min(4, len(handles))
        figure.legend(handles=handles, loc='outside lower center', ncols=columns, fontsize=8, frameon=False)
