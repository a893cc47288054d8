"""COCO JSON: annotation files for training and validation, and the folder of their pictures."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional
from urllib.parse import unquote

from .....checks import DataError
from .....openmmlab.errors import Faults
from ...annotations import read_annotations, scan_annotation_file, scan_annotations
from ...media import SKIP_HINT, read_picture_size
from ..folder import UNREADABLE, DataFolder, format_left_out, format_line, list_folders, require_distinct
from ..pairs import is_label, leave_out_labels
from ..records import UNSPLIT, AnnotatedImage, GivenSplit, Records
from ..splits import (
    SAME_PICTURES_NOTE,
    SPLITS,
    are_same_pictures,
    assign_splits,
    find_folder_split,
    find_split,
    index_tails,
    match_name,
    read_split_lists,
)

UPLOADED = re.compile(r'^[0-9a-f]{8}-')  # a prefix of the names of pictures in Label Studio's exports
SAMPLE = 50  # pictures of an annotation file whose place is looked up
MAX_JSONS = 40  # that are looked into

AnnotationFile = tuple[Path, dict[str, Any]]  # path and content


def read(folder: DataFolder) -> Optional[Records]:
    """Read annotation files in COCO's format."""
    files, lines = _find_annotation_files(folder)
    if not files:
        return None
    paths = [path for path, _ in files.values()]
    folders_of: dict[Path, list[str]] = {}
    for path, content in files.values():
        annotations = scan_annotation_file(path, 'COCO', folder.with_masks, content)
        lines += [format_line('left out', reason) for reason in _add_sizes(folder, content).sentences()]
        _repair(content)
        if annotations.errors:  # some of them are repaired now
            repaired = scan_annotations(content, 'COCO', folder.with_masks)
            if sentences := repaired.errors.sentences():
                raise DataError(f'{path} has ' + '. It has '.join(sentences))
        folders_of[path] = _find_picture_folders(folder, path, content)
    contents = {split: content for split, (_, content) in files.items()}
    stated_paths = {
        Path(*folders_of[path][:1], image['file_name'])
        for path, content in files.values()
        for image in content['images']
    }
    existing = {picture for picture in stated_paths if (folder.root / picture).is_file()}
    for path, content in files.values():
        lines += _find_pictures(folder, path, content, folders_of[path], existing)
    _join_categories([*contents.values()])
    names = [str(category['name']) for category in contents['train']['categories']]
    require_distinct(names, paths[0])
    folder.refuse_other_names(names, paths[0])
    strays = Faults()
    by_split = {split: _group_images(content, strays) for split, content in contents.items()}
    categories = {split: content['categories'] for split, content in contents.items()}
    lines += [format_line('left out', sentence) for sentence in strays.sentences()]
    listed = {picture for pictures in by_split.values() for picture in pictures}
    source = ' and '.join(map(str, paths))
    if 'val' in by_split and are_same_pictures(by_split['train'], by_split['val'], source):
        del by_split['val']
        lines.append(format_line('overruled', f'{source} {SAME_PICTURES_NOTE}'))
    folders = {picture.parent for picture in listed}
    unnamed = [picture for picture in folder.pictures if picture.parent in folders and picture not in listed]
    lines += format_left_out('pictures without an entry in these annotation files', unnamed)
    given_split = GivenSplit()
    if 'val' not in by_split:
        by_split[UNSPLIT] = by_split.pop('train')
        categories[UNSPLIT] = categories.pop('train')
        given_split = read_split_lists(folder, [*by_split[UNSPLIT]])
        if not given_split.pictures and find_split(paths[0].relative_to(folder.ann_root)) == 'test':
            given_split = GivenSplit(dict(test=[*by_split[UNSPLIT]]), str(paths[0]))
    return Records('COCO JSON', names, by_split, given_split, lines, categories)


def _group_images(content: dict[str, Any], strays: Faults) -> dict[Path, list[AnnotatedImage]]:
    """Return the images of a file with their objects, by the paths of the pictures.

    Args:
        strays: receives the objects without an image.
    """
    objects: dict[Any, list[dict[str, Any]]] = {image['id']: [] for image in content['images']}
    for item in content['annotations']:
        if item['image_id'] in objects:
            objects[item['image_id']].append(item)
        else:
            strays.add("objects whose 'image_id' is that of no image", f'{item["id"]} has {item["image_id"]!r}')
    pictures: dict[Path, list[AnnotatedImage]] = {}
    for image in content['images']:
        pictures.setdefault(Path(image['file_name']), []).append(AnnotatedImage(image, objects[image['id']]))
    return pictures


def _find_annotation_files(folder: DataFolder) -> tuple[dict[str, AnnotationFile], list[str]]:
    """Return the annotation file of each split, and lines of the summary.

    A single file is that of 'train', to split later. Without a file in COCO's format, there is no split.
    """
    candidates = sorted(folder.find_by_suffix('.json'), key=lambda path: (find_split(Path(path.name)) is None, path))
    if folder.only_file is not None:
        name = folder.only_file.name.replace('train', 'val', 1)
        others = [path for path in candidates if path.name == name != folder.only_file.name]
        paths = [folder.only_file, *others[:1]]
        return {split: (path, read_annotations(path, 'COCO')) for split, path in zip(SPLITS, paths)}, []
    errors: dict[Optional[str], DataError] = {}
    by_split: dict[Optional[str], list[Path]] = {}
    contents = {}
    lines: list[str] = []
    instance_files = [path for path in candidates if 'instances' in path.stem]
    for path in (instance_files or candidates)[:MAX_JSONS]:
        split = find_split(path.relative_to(folder.ann_root))
        try:
            contents[path] = read_annotations(path, 'COCO')
        except DataError as error:
            errors.setdefault(split, error)
        else:
            annotations = scan_annotation_file(path, 'COCO', folder.with_masks, contents[path])
            if annotations.pictures or annotations.errors:
                by_split.setdefault(split, []).append(path)
            elif split:
                lines.append(format_line('warning', f'{path} has no pictures: it is no file for {split}'))
    for split, first_error in errors.items():
        if not by_split or (split and split not in by_split):  # a JSON of no split may be about another subject
            raise first_error
    for path in by_split.get('test', ()):
        if not contents[path]['annotations']:  # as COCO's own files of test pictures
            lines.append(format_line('left out', f'{path}, a test without objects'))
            by_split['test'] = [other for other in by_split['test'] if other != path]
    train, val, test = assign_splits(by_split)
    for phase, paths in (('training', train), ('validation', val), ('the test', test)):
        if len(paths) > 1:
            shown = ', '.join(str(path.relative_to(folder.ann_root)) for path in paths[:5])
            raise DataError(
                f'{folder.ann_root} has several annotation files for {phase}: {shown}; name one: --data FILE'
            )
    chosen = dict(zip(SPLITS, (train, val, test)))
    return {split: (path, contents[path]) for split, paths in chosen.items() for path in paths}, lines


def _add_sizes(folder: DataFolder, content: dict[str, Any]) -> Faults:
    """Add sizes that Label Studio leaves out, in place. Return the pictures that are skipped."""
    tails = index_tails(folder.pictures)
    faults = Faults()
    unreadable: list[dict[str, Any]] = []
    for image in content['images']:
        if not isinstance(image, dict) or (image.get('height') and image.get('width')):
            continue
        picture = match_name(unquote(str(image.get('file_name'))), tails)
        try:
            if picture:
                image['height'], image['width'] = read_picture_size(folder.root / picture)
        except OSError as error:
            if not folder.skip_unreadable:
                raise DataError(f'{error}{SKIP_HINT}') from error
            faults.add(UNREADABLE, str(error))
            unreadable.append(image)
    if unreadable:
        content['images'] = [image for image in content['images'] if image not in unreadable]
        ids = {str(image.get('id')) for image in unreadable}
        content['annotations'] = [
            item
            for item in content['annotations']
            if not isinstance(item, dict) or str(item.get('image_id')) not in ids
        ]
    return faults


def _repair(content: dict[str, Any]) -> None:
    """Repair, in place, what other programs write and mmdet or pycocotools misread.

    VIA writes numbers of pictures as texts, and polygons without a list around. LVIS has only addresses of pictures.
    Scripts leave out `area` and `iscrowd`. COCO's evaluation counts an object with the id 0 as not found (Roboflow):
    all ids become numbers from 1, and `own_id` keeps those of the user. mmdet numbers two categories of one name as
    two, of which the used one stays.
    """
    images, objects, categories = (
        [entry for entry in content[table] if isinstance(entry, dict)]
        for table in ('images', 'annotations', 'categories')
    )
    for image in images:
        image.setdefault('file_name', image.get('coco_url'))
    image_ids = {str(image.get('id')): image.get('id') for image in images}
    is_counted_from_0 = any(item.get('id') == 0 for item in objects)
    for place, item in enumerate(objects if any('bbox' in item for item in objects) else (), 1):  # else panoptic
        if is_counted_from_0 and 'id' in item:
            item['own_id'] = item['id']
        item['id'] = place if is_counted_from_0 else item.get('id', place)
        item['image_id'] = image_ids.get(str(item.get('image_id')), item.get('image_id'))
        item.setdefault('iscrowd', 0)
        if _are_numbers(item.get('segmentation')):
            item['segmentation'] = [item['segmentation']]
        if _are_numbers(item.get('bbox')) and len(item['bbox']) == 4:
            item.setdefault('area', item['bbox'][2] * item['bbox'][3])
    used_ids = {str(item.get('category_id')) for item in objects}
    used = [category for category in categories if str(category.get('id')) in used_ids]
    last = {str(category.get('name')): category for category in [*categories, *used]}
    kept = [entry for entry in categories if str(entry.get('id')) in used_ids or entry is last[str(entry.get('name'))]]
    if len(kept) < len(categories):
        content['categories'] = kept


def _are_numbers(values: Any) -> bool:
    return isinstance(values, list) and bool(values) and all(isinstance(value, (int, float)) for value in values)


def _find_picture_folders(folder: DataFolder, path: Path, content: dict[str, Any]) -> list[str]:
    """Return the folder, relative to the root, of the pictures of an annotation file, and others that fit as well.

    A folder of the file's split comes before one with more pictures of these names. Empty if no folder has any.
    """
    names = [image['file_name'] for image in content['images']]
    names = names[:: max(1, len(names) // SAMPLE)]
    parents = {parent for picture in folder.pictures for parent in picture.parents}
    split = find_split(Path(path.name)) or find_split(path.relative_to(folder.ann_root))
    ranks: dict[Path, tuple[bool, bool, bool, int, bool]] = {}
    for parent in sorted(parents, key=lambda parent: (len(parent.parts), parent)):
        num_found = sum((folder.root / parent / name).is_file() for name in names)
        is_of_split = find_folder_split(parent / '-') == split
        is_of_labels = is_label(parent / names[0])
        is_beside = folder.root / parent == path.parent
        ranks[parent] = num_found > 0, not is_of_labels, is_of_split, num_found, is_beside
    best = max(ranks.values())
    return [parent.as_posix() for parent, fit in ranks.items() if fit == best] if best[0] else []


def _find_pictures(
    folder: DataFolder, path: Path, content: dict[str, Any], folders: Sequence[str], existing: set[Path]
) -> list[str]:
    """Make paths below the root of the pictures' names, in place, and return lines of the summary.

    Label Studio writes addresses and paths of its server, and Windows's separators; other programs leave out folders.

    Args:
        folders: folders of the pictures: see `_find_picture_folders`.
        existing: pictures that an annotation file of the data has by their paths. They are not found by other names:
            a missing val/a.jpg is not train/a.jpg.
    """
    lines: list[str] = []
    if len(folders) > 1:
        lines.append(
            format_line('warning', f'pictures of {path.name} are in {" and ".join(folders)}: {folders[0]} is taken')
        )
    paths = [Path(*folders[:1], image['file_name']) for image in content['images']]
    pictures = leave_out_labels(folder.pictures)
    tails = index_tails(picture for picture in pictures if picture not in existing)
    matches = {
        name: match_name(unquote(str(name)), tails) or match_name(UPLOADED.sub('', name.name), tails)
        for name in {*paths} - existing
    }
    if not folders and None in matches.values():
        name = next(image['file_name'] for image, name in zip(content['images'], paths) if matches[name] is None)
        raise DataError(
            f'{path} names {len(paths)} pictures, as {name!r}, and below {folder.root} is no picture of this name, or '
            f'several; there are pictures in {list_folders(folder.pictures)}'
        )
    for image, name in zip(content['images'], paths):
        image['file_name'] = (matches.get(name) or name).as_posix()
    if missing := sorted(name for name, picture in matches.items() if picture is None):
        lines.append(format_line('warning', f'{len(missing)} pictures of {path.name} are not there, as {missing[0]}'))
    if by_name := sorted(picture for picture in matches.values() if picture):
        lines.append(format_line('found', f'{len(by_name)} pictures of {path.name} by their names, as {by_name[0]}'))
    return lines


def _join_categories(contents: Sequence[dict[str, Any]]) -> None:
    """Give files with different categories the same, by name, in place.

    mmdet numbers classes in the order of each file.
    """
    by_file = [{category['id']: category['name'] for category in content['categories']} for content in contents]
    if all(list(names.values()) == list(by_file[0].values()) for names in by_file):
        return
    used_names = (
        names[item['category_id']] for content, names in zip(contents, by_file) for item in content['annotations']
    )
    ids = {name: category_id for category_id, name in enumerate(dict.fromkeys([*by_file[0].values(), *used_names]), 1)}
    for content, names in zip(contents, by_file):
        content['categories'] = [dict(id=category_id, name=name) for name, category_id in ids.items()]
        for item in content['annotations']:
            item['category_id'] = ids[names[item['category_id']]]
