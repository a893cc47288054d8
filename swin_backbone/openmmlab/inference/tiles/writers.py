"""What is written of a large picture, bit by bit: labels as a tiled TIFF, objects as lines of JSON and as GeoJSON."""

import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Callable, Optional

import numpy as np
from numpy.typing import NDArray

from ....windows.grid import Size
from .grid import Grid
from .objects import Object, rle_of
from .readers import CACHE, Coordinates, require

GDAL_NODATA = 42113
GEO_TAGS = (33550, 33922, 34264, 34735, 34736, 34737)  # scale, tie points, transformation; keys and their values
LONLAT = 'EPSG:4326'  # of GeoJSON, RFC 7946


def label_type(classes: int) -> np.dtype[Any]:
    """Of labels; its largest number is where no tile was run."""
    return np.dtype(np.uint8 if classes <= 255 else np.uint16)


def encode_labels(labels_HW: NDArray[Any], side: int) -> bytes:
    """A block of a TIFF, which has no smaller ones at its border."""
    block = np.full((side, side), np.iinfo(labels_HW.dtype).max, labels_HW.dtype)
    block[: labels_HW.shape[0], : labels_HW.shape[1]] = labels_HW
    return zlib.compress(block.tobytes())


def write_labels(
    path: Path,
    grid: Grid,
    blocks: Iterator[bytes],
    palette: Sequence[Sequence[int]],
    classes: Sequence[str],
    coordinates: Optional[Coordinates],
) -> None:
    """Labels as a TIFF of blocks of step x step pixels, with the classes' colours and names, and the coordinates.

    Args:
        blocks: of `encode_labels`, row by row.
    """
    tifffile = require('tifffile', 'tifffile', path)
    dtype = label_type(len(classes))
    tags = [(GDAL_NODATA, 2, 0, str(np.iinfo(dtype).max), True)]
    if coordinates is not None:
        tags += _geo_tags(path, coordinates)
    colours: dict[str, Any] = dict(photometric='minisblack')
    if dtype == np.uint8:
        table = np.zeros((3, 256), np.uint16)
        table[:, : len(palette)] = np.array(palette, np.uint16)[:256, :3].T * 257
        colours = dict(photometric='palette', colormap=table)
    tifffile.imwrite(
        path, blocks, shape=grid.size, dtype=dtype, tile=(grid.step, grid.step), compression='zlib', metadata=None,
        software=False, bigtiff=grid.size[0] * grid.size[1] > 1 << 31, extratags=tags, **colours,
        description=json.dumps(dict(classes=list(classes)), ensure_ascii=True),
    )  # fmt: skip


def _geo_tags(path: Path, coordinates: Coordinates) -> list[tuple[Any, ...]]:
    """The tags by which a TIFF says where it lies, as GDAL writes them."""
    rasterio, tifffile = require('rasterio', 'rasterio', path), require('tifffile', 'tifffile', path)
    with rasterio.MemoryFile() as memory:
        profile = dict(driver='GTiff', width=1, height=1, count=1, dtype='uint8')
        with memory.open(**profile, crs=coordinates.crs, transform=rasterio.Affine(*coordinates.transform)):
            pass
        with tifffile.TiffFile(memory) as file:
            tags = file.pages.first.tags
            return [
                (code, tags[code].dtype, tags[code].count, tags[code].value, True) for code in GEO_TAGS if code in tags
            ]


def encode_objects(objects: Iterable[Object]) -> bytes:
    """The objects of a tile, as `decode_objects` reads them."""
    rows = [
        (one.box, one.score, one.label, None if one.runs is None else one.runs.ravel().tolist(), one.is_cut)
        for one in objects
    ]
    return zlib.compress(json.dumps(rows, separators=(',', ':')).encode())


def decode_objects(data: bytes) -> list[Object]:
    return [
        Object(tuple(box), score, label, None if runs is None else np.array(runs, np.int64).reshape(-1, 2), is_cut)
        for box, score, label, runs, is_cut in json.loads(zlib.decompress(data))
    ]


def write_objects(path: Path, objects: Iterable[Object], size: Size, category_ids: Sequence[int]) -> None:
    """A COCO result on each line."""
    with open(path, 'w', encoding='utf-8') as file:
        for one in objects:
            x1, y1, x2, y2 = one.box
            found: dict[str, Any] = dict(
                image_id=1, category_id=category_ids[one.label], score=one.score, bbox=[x1, y1, x2 - x1, y2 - y1]
            )
            if one.runs is not None:
                found['segmentation'] = rle_of(one.runs, size)
            file.write(json.dumps(found) + '\n')


def write_geojson(
    path: Path, objects: Iterable[Object], height: int, coordinates: Coordinates, classes: Sequence[str]
) -> None:
    """Objects as features in longitude and latitude: the outline of the mask, or the box."""
    place = _placing(path, coordinates)
    with open(path, 'w', encoding='utf-8') as file:
        file.write('{"type": "FeatureCollection", "features": [')
        separator = '\n'
        for one in objects:
            properties = {'class': classes[one.label], 'score': one.score}
            feature = dict(type='Feature', properties=properties, geometry=place(_outline(path, one, height)))
            file.write(separator + json.dumps(feature))
            separator = ',\n'
        file.write('\n]}\n')


def _placing(path: Path, coordinates: Coordinates) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """From the picture's pixels to longitude and latitude."""
    rasterio = require('rasterio', 'rasterio', path)
    from rasterio.warp import transform_geom

    a, b, c, d, e, f = coordinates.transform

    def moved(part: Any) -> Any:
        if isinstance(part[0], (int, float)):
            x, y = part[:2]
            return a * x + b * y + c, d * x + e * y + f
        return [moved(one) for one in part]

    def place(geometry: dict[str, Any]) -> dict[str, Any]:
        there = dict(type=geometry['type'], coordinates=moved(geometry['coordinates']))
        with rasterio.Env(GDAL_CACHEMAX=CACHE):
            return dict(transform_geom(coordinates.crs, LONLAT, there, precision=9))

    return place


def _outline(path: Path, one: Object, height: int) -> dict[str, Any]:
    x1, y1, x2, y2 = one.box
    if one.runs is None or not len(one.runs):
        return dict(type='Polygon', coordinates=[[(x1, y1), (x2, y1), (x2, y2), (x1, y2), (x1, y1)]])
    shapely = require('shapely', 'shapely', path)
    x, top = np.divmod(one.runs[:, 0], height)
    outline = shapely.union_all(shapely.box(x, top, x + 1, top + one.runs[:, 1] - one.runs[:, 0])).simplify(0)
    mapping: dict[str, Any] = shapely.geometry.mapping(outline)
    return mapping
