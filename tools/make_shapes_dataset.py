"""Make a data set of shapes on textured backgrounds, for detection, semantic segmentation and classification.

  OUT/images/{train,val}/000000.png
  OUT/annotations/instances_{train,val}.json   COCO boxes and visible masks
  OUT/labels/{train,val}/000000.png            0 background, then the shapes

With --crops also:

  OUT/crops/{train,val}/circle/000000_0.png    one shape, by class
  OUT/annotations/crops_{train,val}.txt        crop and class number, from 0

Equal arguments give equal bytes. A larger set begins with the pictures of a smaller set.
"""

import argparse
import colorsys
import json
from pathlib import Path
from typing import Any, Optional

import cv2
import numpy as np
from numpy.typing import NDArray
from pycocotools import mask as coco_mask

from swin_backbone.commands import Parser, exit_with_message, run
from swin_backbone.options import number_from, positive, whole_from
from swin_backbone.outputs import check_outputs
from swin_backbone.whole_files import write_whole

SHAPES = ('circle', 'square', 'triangle', 'star')
MAX_TILT = np.pi / 12
MIN_CONTRAST = 60  # grey levels of 255 between a shape and the background, in at least one colour channel
MIN_VISIBLE_PIXELS = 64  # of an earlier shape; a shape that would cover more is not drawn


def find_corners(shape: str, centre: NDArray[np.float64], radius: float, tilt: float) -> NDArray[np.float64]:
    """Return the corners of a shape, (number, 2) pixels, tilted by `tilt` radians."""
    if shape == 'star':
        radii, corners = np.tile([radius, 0.45 * radius], 5), 10
    else:
        corners = {'circle': 64, 'square': 4, 'triangle': 3}[shape]
        radii = np.full(corners, radius)
    upright = np.pi / 4 if shape == 'square' else -np.pi / 2
    angles = tilt + upright + 2 * np.pi * np.arange(corners) / corners
    corners_N2: NDArray[np.float64] = centre + radii[:, None] * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return corners_N2


def draw_colour(rng: np.random.Generator, shape: int) -> NDArray[np.float64]:
    """Return a colour, (3,) BGR. Each shape has a likely hue, a quarter of the circle from that of the next shape."""
    hue = (shape / len(SHAPES) + rng.normal(scale=0.06)) % 1
    return 255 * np.array(colorsys.hsv_to_rgb(hue, rng.uniform(0.4, 1), rng.uniform(0.45, 1)))[::-1]


def make_texture(rng: np.random.Generator, size: int, colour: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return the patchy noise of a background around a colour, (size, size, 3) float32."""
    cells = int(rng.integers(size // 10, size // 4))
    coarse = rng.normal(size=(cells, cells, 3)).astype(np.float32)
    noise: NDArray[Any] = cv2.resize(coarse, (size, size), interpolation=cv2.INTER_CUBIC)
    textured: NDArray[np.float32] = colour.astype(np.float32) + 25 * noise
    return textured


def fill_shape(rng: np.random.Generator, size: int, colour: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return the filling of a shape: a colour with a soft gradient of light and fine grain, (size, size, 3) float32."""
    y, x = np.mgrid[:size, :size] / size - 0.5
    light = rng.uniform(-40, 40) * x + rng.uniform(-40, 40) * y
    grain = 4 * rng.normal(size=(size, size, 1))
    filled: NDArray[np.float64] = colour + light[..., None] + grain
    return filled.astype(np.float32)


def draw_picture(
    rng: np.random.Generator, size: int, visible_share: float = 0.0
) -> tuple[NDArray[np.uint8], NDArray[np.uint8], list[int]]:
    """Return a picture (size, size, 3) uint8, the number of the shape at each pixel (0: none), and the shapes' classes.

    Of each shape at least `visible_share` is visible.
    """
    background = rng.uniform(40, 215, size=3)
    picture = make_texture(rng, size, background)
    number_at: NDArray[np.uint8] = np.zeros((size, size), np.uint8)
    classes: list[int] = []
    num_drawn: list[int] = []  # pixels of each shape, visible and hidden
    for _ in range(int(rng.integers(1, 6))):
        shape = int(rng.integers(len(SHAPES)))
        radius = size * np.exp(rng.uniform(np.log(0.12), np.log(0.30)))
        centre = rng.uniform(0.5 * radius, size - 0.5 * radius, size=2)
        corners = find_corners(SHAPES[shape], centre, radius, rng.uniform(-MAX_TILT, MAX_TILT))
        filled = np.zeros((size, size), np.uint8)
        cv2.fillPoly(filled, [np.round(corners * 16).astype(np.int32)], 1, shift=4)
        colour = draw_colour(rng, shape)
        while np.abs(colour - background).max() < MIN_CONTRAST:
            colour = draw_colour(rng, shape)
        fill = fill_shape(rng, size, colour)
        after = np.where(filled > 0, len(classes) + 1, number_at)
        visible = np.bincount(after.ravel(), minlength=len(classes) + 2)[1:]
        required = np.maximum(MIN_VISIBLE_PIXELS, visible_share * np.array([*num_drawn, 0]))
        if (visible < required).any():
            continue
        num_drawn.append(int(visible[-1]))
        number_at = after.astype(np.uint8)
        picture = np.where(filled[..., None] > 0, fill, picture)
        classes.append(shape)
    return np.clip(picture, 0, 255).astype(np.uint8), number_at, classes


def make_annotation(mask: NDArray[np.bool_], category_id: int) -> dict[str, Any]:
    """Return the COCO annotation of a mask, without ids."""
    rle = coco_mask.encode(np.asfortranarray(mask.astype(np.uint8)))
    return {
        'category_id': category_id,
        'bbox': coco_mask.toBbox(rle).tolist(),
        'area': int(coco_mask.area(rle)),
        'segmentation': {'size': rle['size'], 'counts': rle['counts'].decode('ascii')},
        'iscrowd': 0,
    }


def find_crop(number_at: NDArray[np.uint8], number: int) -> Optional[tuple[slice, slice]]:
    """Return a square with a margin around the visible part of a shape, or None if another shape fills most of it."""
    rows, columns = np.nonzero(number_at == number)
    size = len(number_at)
    side = min(size, int(1.2 * (1 + max(np.ptp(rows), np.ptp(columns)))))
    first = [int(np.clip((x.min() + x.max() + 1 - side) // 2, 0, size - side)) for x in (rows, columns)]
    where = slice(first[0], first[0] + side), slice(first[1], first[1] + side)
    return where if np.bincount(number_at[where].ravel())[1:].argmax() == number - 1 else None


def write(path: Path, data: bytes, overwrite: bool) -> None:
    check_outputs(path, overwrite=overwrite)
    write_whole(path, data)


def write_split(out: Path, split: str, count: int, args: argparse.Namespace) -> None:
    """Write the pictures, label maps and annotations of one split, and its crops."""
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    crop_lines: list[str] = []
    size, crops = args.shape[0], args.crops
    for index in range(count):
        rng = np.random.default_rng([args.seed, split == 'val', index])
        picture, number_at, classes = draw_picture(rng, size, args.visible)
        name = f'{index:06d}.png'
        labels = np.array([0, *(1 + shape for shape in classes)], np.uint8)[number_at]
        for folder, pixels in (('images', picture), ('labels', labels)):
            write(out / folder / split / name, encode_png(pixels), args.overwrite)
        images.append({'id': index, 'file_name': name, 'height': size, 'width': size})
        for position, shape in enumerate(classes):
            annotation = make_annotation(number_at == position + 1, shape + 1)
            annotations.append({'id': len(annotations) + 1, 'image_id': index, **annotation})
            where = find_crop(number_at, position + 1) if crops else None
            if where is not None:
                crop_name = f'{SHAPES[shape]}/{index:06d}_{position}.png'
                write(out / 'crops' / split / crop_name, encode_png(picture[where]), args.overwrite)
                crop_lines.append(f'{crop_name} {shape}\n')
    categories = [{'id': position + 1, 'name': name} for position, name in enumerate(SHAPES)]
    coco = json.dumps({'images': images, 'annotations': annotations, 'categories': categories})
    write(out / 'annotations' / f'instances_{split}.json', coco.encode(), args.overwrite)
    if crops:
        write(out / 'annotations' / f'crops_{split}.txt', ''.join(crop_lines).encode(), args.overwrite)
    note = f', {len(crop_lines)} of them cropped' if crops else ''
    print(f'{out}: {split}: {len(images)} pictures of {size}x{size}, {len(annotations)} shapes{note}')


def encode_png(pixels: NDArray[np.uint8]) -> bytes:
    return cv2.imencode('.png', pixels)[1].tobytes()


def parse_args() -> argparse.Namespace:
    parser = Parser(description=__doc__)
    parser.add_argument('out', type=Path, metavar='OUT', help='folder to write to')
    parser.add(
        'shape seed overwrite debug',
        seed=dict(default=0, help='seed of the random numbers (default: 0)'),
        shape=dict(
            type=whole_from(64, 8192), default=(128, 128), help='side of the square pictures in pixels (default: 128)'
        ),
    )
    parser.add_argument('--train', type=positive, default=400, metavar='N', help='training pictures (default: 400)')
    parser.add_argument('--val', type=positive, default=80, metavar='N', help='validation pictures (default: 80)')
    parser.add_argument(
        '--visible',
        type=number_from(0, 1),
        default=0.0,
        metavar='F',
        help='smallest visible share of a shape, 0 to 1 (default: 0)',
    )
    parser.add_argument('--crops', action='store_true', help='also write a crop of each shape, for a classifier')
    args = parser.parse_args()
    if args.shape[0] != args.shape[1]:
        parser.error(f'--shape takes equal sides, got {args.shape[0]} {args.shape[1]}')
    return args


def main() -> None:
    args = parse_args()
    with exit_with_message(debug=args.debug):
        for split, count in (('train', args.train), ('val', args.val)):
            write_split(args.out, split, count, args)


if __name__ == '__main__':
    run(main)
