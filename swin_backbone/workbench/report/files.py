"""Labels and results as files, of this or any other program.

- Detection: labels are a COCO JSON. Results are COCO results, a JSON list, with `bbox`, `segmentation` or both.
- Segmentation: labels are a folder of PNGs with the class of each pixel, 255 where ignored. Results are a folder
  of PNGs with equal names.
- Classification: labels are a CSV with the head line `file,class`. Results are a CSV with the head line `file`, and the
  name of a class above each column of scores.
"""

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

import numpy as np
from PIL import Image
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO
from pycocotools.cocoeval import Params

from ...checks import check_size
from ...silence import silent
from ..data.check_labels import describe_values
from ..data.masks import SHORT_POLYGON, find_mask_fault
from ..data.prepare.folder import drop_ignored_mark, find_class_file, read_class_file
from .confusion import PixelCounts
from .detection import Array, Evaluation, evaluate

TASKS_OF_FILES = {'.json': 'detection', 'folder': 'segmentation', '.csv': 'classification'}
IGNORED = -1  # label of pixels that are not counted
IGNORED_VALUES = dict(L=255, P=255)  # of PNGs by Pillow's mode; of others 65535
ROUNDING = 1e-3  # of scores
LISTS = ('images', 'categories', 'annotations')  # of a COCO JSON
ADDED_BY_COCOEVAL = ('ignore', '_ignore')  # which an evaluation adds to annotations


def find_task(labels: Path, results: Path) -> str:
    """Return the task of two files or folders.

    Raises:
        ValueError: if one is missing, or they are not both a JSON, a CSV or a folder.
    """
    for path in (labels, results):
        if not path.exists():
            raise ValueError(f'there is no {path}')
    forms = {'folder' if path.is_dir() else path.is_file() and path.suffix.lower() for path in (labels, results)}
    for form, task in TASKS_OF_FILES.items():
        if forms == {form}:
            return task
    allowed = 'two COCO JSON files, two folders of PNGs or two CSV files'
    raise ValueError(f'--labels and --results take {allowed}, got {labels}, {results}')


def read_evaluations(labels: Path, results: Path) -> list[Evaluation]:
    """Return the evaluations of the boxes and of the masks of COCO results.

    Masks are evaluated if all results and labels have a `segmentation`. A result has a `score` from 0 to 1; masks may
    have a score of their own, `mask_score`.

    Raises:
        ValueError: if a file is not in COCO's form, or the results name pictures or classes that the labels lack.
    """
    truth = COCO()
    truth.dataset = load_json(labels)
    predictions = load_json(results)
    tables: list[Any] = [truth.dataset.get(key) for key in LISTS] if isinstance(truth.dataset, dict) else []
    if not tables or not all(isinstance(table, list) for table in tables):
        raise ValueError(f'{labels} takes a COCO JSON with lists of {", ".join(LISTS)}')
    if not isinstance(predictions, list):
        raise ValueError(f'{results} takes COCO results, a list of dicts')
    images, categories, annotations = tables
    known: dict[str, set[Any]] = dict(image_id=set(), category_id=set())
    _check_each(labels, images, _check_entry, 'file_name', known['image_id'])
    _check_each(labels, categories, _check_entry, 'name', known['category_id'])
    files = ((labels, annotations), (results, predictions))
    for path, items in files:
        _check_each(path, items, _check_ids, known)
    for new_id, item in enumerate(annotations, 1):  # 0 is no object to COCOeval
        item['own_id'] = item.get('own_id', item.get('id'))
        item['id'] = new_id
    with silent():  # pycocotools prints
        truth.createIndex()
    keys = [key for key in ('bbox', 'segmentation') if all(_all_have(path, items, key) for path, items in files)]
    if not keys:
        raise ValueError(f'{results} and {labels} take a bbox or a segmentation in each of their objects')
    sizes: dict[Any, tuple[int, int]] = {}
    for path, items in files:
        if 'segmentation' in keys:
            _check_each(path, items, _convert_mask, truth, sizes)
        _check_each(path, items, _convert_box, keys)
    _check_each(results, predictions, _convert_result)
    _check_each(labels, annotations, _convert_label, keys)
    evaluations = []
    for key in keys:
        params = Params('segm' if key == 'segmentation' else 'bbox')
        scored = predictions
        if key == 'segmentation':
            scored = [{**item, 'score': item.get('mask_score', item['score'])} for item in predictions]
        params.maxDets = [max([1000, *(len(truth.imgToAnns[image_id]) for image_id in truth.imgs)])]
        evaluations.append(evaluate(truth, scored, params))
    return evaluations


def _check_each(path: Path, items: Iterable[Any], check: Callable[..., object], *arguments: Any) -> None:
    """Call a function with each item of a file, and further arguments. An error names the file and the item."""
    for item in items:
        try:
            check(item, *arguments)
        except Exception as error:  # pycocotools raises anything
            reason = f'it lacks {error}' if isinstance(error, KeyError) else error
            raise ValueError(f'{path}: {item!r:.200}: {reason}') from error


def _all_have(path: Path, items: Sequence[Mapping[str, Any]], key: str) -> bool:
    """Return whether the objects of a file have a `bbox` or `segmentation`. [] counts as none."""
    lacking = [item for item in items if item.get(key) in (None, [])]
    if 0 < len(lacking) < len(items):
        got = f'{len(lacking)} of {len(items)} have none, as {lacking[0]!r:.200}'
        raise ValueError(f'{path} takes a {key} in each of its objects, or in none: {got}')
    return not lacking


def _check_entry(item: Mapping[str, Any], name: str, ids: set[Any]) -> None:
    """Check the name and the id of an image or a category, and add the id to those of earlier entries."""
    if item['id'] in ids:
        raise ValueError(f'another has the id {item["id"]!r}')
    if isinstance(item['id'], str) != isinstance(next(iter(ids), item['id']), str):
        raise ValueError('ids are all numbers or all strings')  # np.unique would make strings of all
    ids.add(item['id'])
    if not isinstance(item[name], str):
        raise ValueError(f'{name} takes a string, got {item[name]!r}')


def _check_ids(item: Mapping[str, Any], known: Mapping[str, set[Any]]) -> None:
    for key, ids in known.items():
        if item[key] not in ids:
            raise ValueError(f'the labels have no {key}={item[key]!r}')


def _convert_mask(item: dict[str, Any], truth: COCO, sizes: dict[Any, tuple[int, int]]) -> None:
    """Turn the mask of an object into an RLE. The masks of a picture are compared, and have one size.

    Args:
        sizes: height and width of the masks of each picture; that of the mask is added. The size of a picture in the
            labels counts for polygons alone: RLEs may have another, which is that of the picture.
    """
    mask, image = item['segmentation'], truth.imgs[item['image_id']]
    size = check_size('size', mask['size'] if isinstance(mask, dict) else (image['height'], image['width']))
    fault = find_mask_fault(mask, size)
    if fault is not None and fault[0] != SHORT_POLYGON:
        raise ValueError(f'its mask {fault[1]}')
    other_size = sizes.setdefault(item['image_id'], size)
    if size != other_size:
        name = image['file_name']
        raise ValueError(f'its mask has {size} pixels (height, width), and other masks of {name} have {other_size}')
    for key, side in zip(('height', 'width'), size):  # which pycocotools reads; RLEs need none
        image.setdefault(key, side)
    item['segmentation'] = truth.annToRLE(item)


def _convert_result(item: dict[str, Any]) -> None:
    for key in {'score', 'mask_score'} & item.keys() | {'score'}:
        item[key] = float(_require_finite(item[key]))
    if not -ROUNDING <= item['score'] <= 1 + ROUNDING:  # thresholds are from 0 to 1
        raise ValueError(f'score takes a number from 0 to 1, got {item["score"]}')


def _convert_label(item: dict[str, Any], keys: Sequence[str]) -> None:
    if 'area' not in item:
        has_mask = 'segmentation' in keys
        item['area'] = coco_mask.area(item['segmentation']) if has_mask else item['bbox'][2] * item['bbox'][3]
    item['area'] = float(_require_finite(item['area']))
    if item.setdefault('iscrowd', 0) not in (0, 1):
        raise ValueError(f'iscrowd takes 0 or 1, got {item["iscrowd"]!r}')
    item['iscrowd'] = int(item['iscrowd'])


def _convert_box(item: dict[str, Any], keys: Sequence[str]) -> None:
    """Turn the numbers of a box into floats. A mask alone gets the box of its pixels."""
    box = _require_finite(item['bbox'] if 'bbox' in keys else coco_mask.toBbox(item['segmentation']))
    if box.shape != (4,):
        raise ValueError(f'bbox takes x, y, width and height, got {item["bbox"]}')
    item['bbox'] = box.tolist()


def _require_finite(values: Any) -> Array:
    """Return numbers as an array. Raises ValueError for anything else, and for NaN and infinity."""
    numbers = np.asarray(values, float)
    if not np.isfinite(numbers).all():
        raise ValueError(f'it takes finite numbers, got {values}')
    return numbers


def list_tested_pictures(truth: COCO) -> dict[Any, str]:
    """Return the names of the tested pictures by id: all but those that a test left out."""
    return {image_id: image['file_name'] for image_id, image in truth.imgs.items() if image.get('tested', True)}


def encode_objects(coco: Mapping[str, Any], files: Mapping[Any, str]) -> bytes:
    """Return a COCO JSON of labels.

    Args:
        files: names of the tested pictures by id.
    """
    images = [
        {**image, **(dict(file_name=files[image['id']]) if image['id'] in files else dict(tested=False))}
        for image in coco['images']
    ]
    annotations = [
        {key: value for key, value in item.items() if key not in ADDED_BY_COCOEVAL} for item in coco['annotations']
    ]
    content = dict(images=images, annotations=annotations, categories=coco['categories'])
    # RLE; numbers of NumPy
    text = json.dumps(content, default=lambda value: value.decode() if isinstance(value, bytes) else value.tolist())
    return text.encode()


def count_label_pixels(labels: Path, results: Path, classes: Optional[Sequence[str]] = None) -> tuple[PixelCounts, Any]:
    """Count the pixels of label PNGs and predicted PNGs, and return the counts and the palette of the labels.

    Args:
        classes: names; None: those of a file in the folder of labels or beside it, see `find_class_file`, or the values
            without a file.

    Raises:
        ValueError: if a file is missing, has colours, another size, or a value of no class, or if the labels are black
            and white.
    """
    names = [path.relative_to(labels) for path in sorted(labels.rglob('*')) if path.suffix.lower() == '.png']
    missing = [name for name in names if not (results / name).is_file()]
    if not names or missing:
        raise ValueError(f'{results} takes a PNG for each of {labels}, got {f"no {missing[0]}" if names else "none"}')
    file = find_class_file((labels, labels.parent))
    are_named = bool(classes)
    if not classes and file is not None:
        numbered = drop_ignored_mark(read_class_file(file, may_have_gaps=True))
        if [*numbered] != [*range(len(numbered))]:
            raise ValueError(f'{file} takes names of the values from 0 on, got {describe_values([*numbered])}')
        classes = [*numbered.values()]
    if not classes:
        largest = max(int(_read_values(folder / name)[0].max()) for name in names for folder in (labels, results))
        classes = [f'class {value}' for value in range(largest + 1)]
    counts = PixelCounts(classes, IGNORED)
    palette, largest, least = None, 0, 0
    for name in names:
        (label_HW, palette), (predicted_HW, _) = (_read_values(folder / name) for folder in (labels, results))
        largest, least = max(largest, label_HW.max()), min(least, label_HW.min())
        if label_HW.shape != predicted_HW.shape:
            raise ValueError(f'{results / name} takes {label_HW.shape} pixels, got {predicted_HW.shape}')
        counted = label_HW != IGNORED
        for path, values in ((labels / name, label_HW[counted]), (results / name, predicted_HW[counted])):
            wrong = values[(values < 0) | (values >= len(classes))]
            if wrong.size:
                got = 'that of ignored pixels, 255 or in 16 bits 65535' if wrong[0] == IGNORED else wrong[0]
                raise ValueError(f'{path} takes the values 0 to {len(classes) - 1}, got {got}')
        counts.add(name.with_suffix('').as_posix(), label_HW, predicted_HW)
    if not are_named and (largest, least) == (0, IGNORED):
        raise ValueError(f'{labels} takes labels of several classes, got 0 and ignored pixels (255): write 1 for 255')
    return counts, palette


def _read_values(path: Path) -> tuple[Array, Any]:
    """Return the values of a PNG, (H, W), with `IGNORED` in place of 255 or, in 16 bits, 65535; and its palette."""
    try:
        with Image.open(path) as image:
            values = np.asarray(image).astype(np.int32)
            palette = image.getpalette()
            ignored = IGNORED_VALUES.get(image.mode, 65535)
    except Exception as error:  # Pillow's decoders raise many kinds
        raise OSError(f'{path} cannot be read as a PNG: {error}') from error
    if values.ndim != 2:
        raise ValueError(
            f'{path} takes one channel, whose values are the classes, got colours {values.shape}: write labels with a '
            'palette or in grey, as tools/infer.py does'
        )
    return np.where(values == ignored, IGNORED, values), palette and np.array(palette).reshape(-1, 3)


def read_scores(labels: Path, results: Path) -> tuple[list[str], Array, Array, list[str]]:
    """Return names of N pictures, labels (N,), scores (N, K) and names of K classes, of two CSV files.

    Raises:
        ValueError: if a picture has no scores, several labels or several rows of scores, or if a label is no column of
            the results.
    """
    label_header, *label_rows = _read_csv(labels)
    score_header, *score_rows = _read_csv(results)
    classes = score_header[1:]
    files = [row[0] for row in label_rows]
    for path, names in ((labels, files), (results, [row[0] for row in score_rows]), (results, classes)):
        repeated = [name for name, count in Counter(names).items() if count > 1]
        if repeated:
            raise ValueError(f'{path} takes each picture and each class once, got {repeated[0]!r} again')
    if not classes:
        raise ValueError(f'{results} takes a head line of file and the classes, with commas, got {score_header}')
    if label_header[0] != 'file' and label_header[1:2] and label_header[1] in classes:
        raise ValueError(f'{labels} takes the head line file,class first, got {label_header}')
    scores = {row[0]: row[1:] for row in score_rows}
    for row in label_rows:
        if len(row) < 2 or row[1] not in classes:
            raise ValueError(f'{labels} takes lines of a file and one of {", ".join(classes)}, got {row}')
        if len(scores.get(row[0], ())) != len(classes):
            raise ValueError(f'{results} takes {len(classes)} scores of {row[0]}, got {scores.get(row[0])}')
    _check_each(results, ([file, *scores[file]] for file in files), lambda row: _require_finite(row[1:]))
    scores_NK = np.array([scores[file] for file in files], float).reshape(-1, len(classes))
    return files, np.array([classes.index(row[1]) for row in label_rows], int), scores_NK, classes


def _read_csv(path: Path) -> list[list[str]]:
    with open(path, newline='', encoding='utf-8-sig', errors='surrogateescape') as file:
        try:
            lines = [line for line in csv.reader(file) if line]
        except csv.Error as error:  # a quote that is not closed
            raise ValueError(f'{path} is no CSV: {error}') from error
    if len(lines) < 2:
        raise ValueError(f'{path} takes a head line and a line for each picture, got {len(lines)} lines')
    return lines


def encode_csv(rows: Iterable[Sequence[Any]]) -> bytes:
    """Return the contents of a CSV."""
    text = io.StringIO(newline='')
    csv.writer(text, lineterminator='\n').writerows(rows)
    return text.getvalue().encode(errors='surrogateescape')


def load_json(path: Path) -> Any:
    """Return the contents of a JSON. Raises ValueError with the path for another file."""
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f'{path} is no JSON: {error}') from error


def find_pictures(folder: Optional[Path], names: Iterable[str]) -> Iterator[str]:
    """Return the path of each picture by its name: with any suffix, or without a folder the name itself."""
    by_stem: dict[Path, dict[str, Path]] = {}  # files by folder; only of names that are no file
    for name in names:
        path = Path(name) if folder is None else folder / name.replace('\\', '/')  # a path of Windows
        if folder is not None and not path.is_file():
            if path.parent not in by_stem:
                by_stem[path.parent] = _list_by_stem(path.parent)
            files = by_stem[path.parent]
            path = files.get(path.name, files.get(path.stem, path))
        yield str(path)


def _list_by_stem(folder: Path) -> dict[str, Path]:
    try:
        files = sorted(folder.iterdir(), reverse=True)  # the first of a stem stays
    except OSError:  # no folder, or one that may not be read: no picture is shown
        files = []
    return {path.stem: path for path in files if path.is_file()}
