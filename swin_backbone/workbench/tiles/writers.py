"""Write the results of a large picture piece by piece: labels as a tiled TIFF, objects as lines of JSON and GeoJSON."""

import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
import shapely
import tifffile
from numpy.typing import NDArray
from rasterio.warp import transform_geom
from shapely.affinity import affine_transform

from ...sizes import Size
from .grid import Grid
from .objects import Object, encode_runs
from .readers import Picture

GDAL_NODATA = 42113
GEO_TAGS = (33550, 33922, 34264, 34735, 34736, 34737)  # scale, tie points, transformation; keys and their values
LONLAT = 'EPSG:4326'  # of GeoJSON, RFC 7946


def choose_label_type(num_classes: int) -> np.dtype[Any]:
    """Return the dtype of labels. Its largest number marks pixels without a prediction."""
    return np.dtype(np.uint8 if num_classes <= 255 else np.uint16)


def pack_labels(labels_HW: NDArray[Any]) -> bytes:
    """Return the labels of a tile as bytes for `unpack_labels`."""
    return zlib.compress(labels_HW.tobytes())


def unpack_labels(packed: bytes, size: Size, num_classes: int) -> NDArray[Any]:
    return np.frombuffer(zlib.decompress(packed), choose_label_type(num_classes)).reshape(size)


def write_labels(
    path: Path,
    grid: Grid,
    blocks: Iterator[NDArray[Any]],
    palette: Sequence[Sequence[int]],
    classes: Sequence[str],
    picture: Picture,
) -> None:
    """Write labels as a TIFF of blocks of stride x stride pixels, with colours and names of the classes.

    Args:
        blocks: labels of each block, row by row; smaller at the borders of the picture.
        picture: has the coordinates.
    """
    dtype = choose_label_type(len(classes))
    tags = [(GDAL_NODATA, 2, 0, str(np.iinfo(dtype).max), True)]
    if picture.crs:
        tags += _make_geo_tags(picture)
    colours: dict[str, Any] = dict(photometric='minisblack')
    if dtype == np.uint8:
        table = np.zeros((3, 256), np.uint16)
        table[:, : len(palette)] = np.array(palette, np.uint16)[:256, :3].T * 257
        colours = dict(photometric='palette', colormap=table)
    tifffile.imwrite(
        path, blocks, shape=grid.size, dtype=dtype, tile=(grid.stride, grid.stride), compression='zlib', metadata=None,
        software=False, bigtiff=grid.size[0] * grid.size[1] > 1 << 31, extratags=tags, **colours,
        description=json.dumps(dict(classes=list(classes)), ensure_ascii=True),
    )  # fmt: skip


def _make_geo_tags(picture: Picture) -> list[tuple[Any, ...]]:
    """Return the TIFF tags of a picture's coordinates, copied from a small file of GDAL."""
    with rasterio.MemoryFile() as memory:
        profile = dict(driver='GTiff', width=1, height=1, count=1, dtype='uint8')
        memory.open(**profile, crs=picture.crs, transform=picture.transform).close()
        with tifffile.TiffFile(memory) as file:
            tags = file.pages.first.tags
            return [
                (code, tags[code].dtype, tags[code].count, tags[code].value, True) for code in GEO_TAGS if code in tags
            ]


def pack_objects(objects: Iterable[Object]) -> bytes:
    """Return the objects of a tile as bytes for `unpack_objects`."""
    rows = [[*item[:3], None if item.runs is None else item.runs.ravel().tolist(), item.is_cut] for item in objects]
    return zlib.compress(json.dumps(rows, separators=(',', ':')).encode())


def unpack_objects(packed: bytes) -> list[Object]:
    return [
        Object(tuple(box), score, label, None if runs is None else np.array(runs, np.int64).reshape(-1, 2), is_cut)
        for box, score, label, runs, is_cut in json.loads(zlib.decompress(packed))
    ]


def write_objects(path: Path, objects: Iterable[Object], size: Size, category_ids: Sequence[int]) -> None:
    """Write a COCO result on each line."""
    with open(path, 'w', encoding='utf-8') as file:
        for item in objects:
            x1, y1, x2, y2 = item.box
            result: dict[str, Any] = dict(
                image_id=1, category_id=category_ids[item.label], score=item.score, bbox=[x1, y1, x2 - x1, y2 - y1]
            )
            if item.runs is not None:
                result['segmentation'] = encode_runs(item.runs, size)
            file.write(json.dumps(result) + '\n')


def write_geojson(path: Path, objects: Iterable[Object], picture: Picture, classes: Sequence[str]) -> None:
    """Write objects as features in longitude and latitude: the outline of the mask, or the box."""
    with open(path, 'w', encoding='utf-8') as file:
        file.write('{"type": "FeatureCollection", "features": [')
        separator = '\n'
        for item in objects:
            properties = {'class': classes[item.label], 'score': item.score}
            outline = affine_transform(_make_outline(item, picture.size[0]), picture.transform.to_shapely())
            geometry = transform_geom(picture.crs, LONLAT, shapely.geometry.mapping(outline), precision=9)
            feature = dict(type='Feature', properties=properties, geometry=dict(geometry))
            file.write(separator + json.dumps(feature))
            separator = ',\n'
        file.write('\n]}\n')


def _make_outline(item: Object, height: int) -> Any:
    """Return the outline of a mask or box in pixels, as a shape of shapely."""
    if item.runs is None or not len(item.runs):
        return shapely.box(*item.box)
    x, top = np.divmod(item.runs[:, 0], height)
    return shapely.union_all(shapely.box(x, top, x + 1, top + item.runs[:, 1] - item.runs[:, 0])).simplify(0)
