"""Shapes of annotation programs: cut at the picture's edges, joined, turned, and drawn as masks."""

import base64
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
from helpers.openmmlab import layouts
from helpers.openmmlab.own_folders import BOXES, MASKS, fill, read
from pycocotools import mask as coco_mask

from swin_backbone.workbench.data.check_data import check_data
from swin_backbone.workbench.data.datasets import BuiltDatasets
from swin_backbone.workbench.data.prepare.objects.shapes import find_corners, join_groups, make_box

HEIGHT, WIDTH = 60, 100
BESIDE = [[-40, 30], [50, 10], [50, 50]]  # a triangle whose tip is left of the picture
POLYGON = [[30, 10], [80, 20], [60, 50]]
BOX = (20.0, 10.0, 60.0, 30.0)  # left, top, right, bottom


def draw(points):
    """Return the pixels whose centre is inside an outline, by the even-odd rule: (H, W)."""
    rows, columns = np.mgrid[:HEIGHT, :WIDTH] + 0.5
    inside = np.zeros((HEIGHT, WIDTH), bool)
    for (x1, y1), (x2, y2) in zip(points, np.roll(points, -1, 0)):
        between = (y1 > rows) != (y2 > rows)
        if y1 != y2:
            inside ^= between & (columns < x1 + (rows - y1) * (x2 - x1) / (y2 - y1))
    return inside.astype(np.uint8)


def drawn(mask):
    """Return the pixels of a segmentation: (H, W)."""
    rles = coco_mask.frPyObjects(mask, HEIGHT, WIDTH) if isinstance(mask, list) and mask else [mask] * bool(mask)
    return coco_mask.decode(coco_mask.merge(rles)) if rles else np.zeros((HEIGHT, WIDTH), np.uint8)


def iou(one, other):
    return (one & other).sum() / max((one | other).sum(), 1)


def pictures(root, write):
    """Write two pictures, and the annotations of each by `write(root, name)`."""
    for name in ('a', 'b'):
        layouts.write_picture(root, name, np.zeros((HEIGHT, WIDTH, 3), np.uint8))
        write(root, name)
    return root


def labelme(*shapes):
    def write(root, name):
        data = dict(shapes=[dict(dict(label='nut'), **shape) for shape in shapes], imagePath=f'{name}.jpg')
        layouts.write(root / f'{name}.json', data)

    return write


def cvat(*elements):
    """Write the file of both pictures."""

    def write(root, name):
        images = ''.join(f'<image id="{n}" name="{n}.jpg">{"".join(elements)}</image>' for n in 'ab')
        layouts.write(root / 'annotations.xml', f'<annotations>{images}</annotations>')

    return write


def voc(*objects):
    def write(root, name):
        layouts.write(root / f'{name}.xml', f'<annotation>{"".join(objects)}</annotation>')

    return write


def yolo(*lines):
    return lambda root, name: layouts.write(root / f'{name}.txt', ''.join(f'{line}\n' for line in lines))


def coco(*objects):
    """Write the file of both pictures."""

    def write(root, name):
        images = [dict(id=n, file_name=f'{name}.jpg', height=HEIGHT, width=WIDTH) for n, name in enumerate('ab', 1)]
        annotations = [dict(dict(image_id=image['id'], category_id=1, area=1, iscrowd=0), **item)
                       for image in images for item in objects]  # fmt: skip
        annotations = [dict(item, id=number) for number, item in enumerate(annotations, 1)]
        layouts.write(root / 'a.json', dict(
            images=images, annotations=annotations, categories=[dict(id=1, name='nut')]))  # fmt: skip

    return write


def xy(points):
    return ';'.join(f'{x},{y}' for x, y in points)


def shares(points):
    return ' '.join(f'{x / WIDTH} {y / HEIGHT}' for x, y in points)


def voc_box(box=BOX, more=''):
    corners = ''.join(f'<{name}>{value + 1}</{name}>' for name, value in zip(('xmin', 'ymin', 'xmax', 'ymax'), box))
    return f'<object><name>nut</name><bndbox>{corners}</bndbox>{more}</object>'


def cvat_box(box=BOX, more=''):
    corners = ' '.join(f'{name}="{value}"' for name, value in zip(('xtl', 'ytl', 'xbr', 'ybr'), box))
    return f'<box label="nut" {corners} {more}/>'


def objects_of(write, root, config=MASKS):
    """Return the objects of a picture of each split, which are equal, and the report."""
    cfg, report = fill(config, pictures(root / 'own', write), root / 'work')
    train, val = (
        [dict(item, id=0, image_id=0, own_id=0) for item in read(cfg, phase)['annotations']]
        for phase in ('train', 'val')
    )
    assert repr(train) == repr(val)  # NaN equals no number
    return SimpleNamespace(cfg=cfg, report=report, objects=train)


def stars(rng):
    """Yield outlines around the edges of the picture, simple and crossing themselves, with whole coordinates or not."""
    for number in range(200):
        count = rng.integers(3, 12)
        angles = rng.uniform(0, 2 * np.pi, count)
        angles = np.sort(angles) if number % 4 else angles
        radii = rng.uniform(10, 120, (count, 1))
        points = rng.uniform(0, (WIDTH, HEIGHT)) + radii * np.stack([np.cos(angles), np.sin(angles)], 1)
        yield np.round(points) if number % 3 == 0 else points


@pytest.mark.parametrize('seed', range(3))
def test_an_outline_keeps_its_pixels_inside_of_the_picture(seed, record_fault):
    for points in stars(np.random.default_rng(seed)):
        box, whole = make_box('nut', points, (HEIGHT, WIDTH)), draw(points)
        around = np.ones((3, 3), np.uint8)
        at_edges = cv2.dilate(whole, around) != cv2.erode(whole, around)  # which pycocotools rounds
        assert ((drawn(box.mask) != whole) & ~at_edges).sum() <= 8  # pixels of slivers
        x, y, w, h = box.bbox
        assert min(x, y, WIDTH - x - w, HEIGHT - y - h) > -1e-9
        if whole.any():
            rows, columns = np.flatnonzero(whole.any(1)), np.flatnonzero(whole.any(0))
            assert x <= columns[0] + 0.5
            assert y <= rows[0] + 0.5
            assert x + w >= columns[-1] + 0.5
            assert y + h >= rows[-1] + 0.5
    record_fault('bad_data')


def test_a_join_outside_of_a_corner_is_no_part_of_the_object():
    """A shape at the left edge, with a tail around the upper left corner."""
    points = [[20, 30], [20, 40], [-10, 40], [-10, -10], [30, -10], [30, -5], [-5, -5], [-5, 30]]
    assert make_box('nut', points, (HEIGHT, WIDTH)).bbox == (0, 30, 20, 10)


@pytest.mark.parametrize('points', [
    np.array(BESIDE), np.array([[50, 30], [-50, 30], [50, -60]]), np.array([[-9, -9], [150, -9], [150, 99], [-9, 99]]),
], ids=['tip', 'corner', 'around'])  # fmt: skip
@pytest.mark.parametrize('form', ['labelme', 'cvat', 'coco'])
def test_points_outside_move_no_edges(form, points, tmp_path, record_fault):
    write = dict(
        labelme=lambda: labelme(dict(points=points.tolist())),
        cvat=lambda: cvat(f'<polygon label="nut" points="{xy(points)}"/>'),
        coco=lambda: coco(dict(segmentation=[points.ravel().tolist()], bbox=[0, 0, 50, 50])),
    )[form]()
    (item,) = objects_of(write, tmp_path).objects
    assert iou(drawn(item['segmentation']), draw(points)) > 0.97
    if form != 'coco':
        assert item['area'] == pytest.approx(draw(points).sum(), rel=0.03)
    record_fault('bad_data')


def test_what_is_outside_of_its_picture_is_counted(tmp_path, record_fault):
    away = np.array([[-40, 30], [-20, 10], [-20, 50]])
    found = objects_of(labelme(dict(points=away.tolist()), dict(points=POLYGON)), tmp_path)
    assert len(found.objects) == 1
    assert 'left out    objects without an area inside of their picture: 2, as ' in found.report
    assert not any(check.warnings for check in check_data(BuiltDatasets(found.cfg, ())))
    record_fault('bad_data')


def bitmap(left, top, right, bottom):
    png = cv2.imencode('.png', np.full((bottom - top, right - left), 255, np.uint8))[1]
    mask = base64.b64encode(png).decode()
    return dict(shape_type='mask', points=[[left, top], [right - 1, bottom - 1]], mask=mask)


PARTS = dict(
    mask=bitmap(10, 10, 30, 30),
    polygon=dict(points=[[40, 10], [60, 10], [60, 30], [40, 30]]),
    rectangle=dict(shape_type='rectangle', points=[[70, 10], [90, 30]]),
    circle=dict(shape_type='circle', points=[[50, 45], [50, 55]]),
)


@pytest.mark.parametrize('kinds', [
    ('mask', 'mask'), ('mask', 'polygon'), ('polygon', 'mask'), ('polygon', 'rectangle'), ('rectangle', 'rectangle'),
    ('mask', 'rectangle', 'polygon', 'circle'),
])  # fmt: skip
def test_shapes_of_a_group_are_one_object(kinds, tmp_path, record_fault):
    shapes = [dict(PARTS[kind], group_id=7) for kind in kinds]
    if kinds[0] == kinds[1] == 'mask':
        shapes[1] = dict(bitmap(60, 35, 80, 55), group_id=7)
    found = objects_of(labelme(*shapes, dict(points=POLYGON)), tmp_path)
    apart = objects_of(labelme(*(dict(shape, group_id=None) for shape in shapes)), tmp_path / 'apart')
    assert len(found.objects) == 2
    assert len(apart.objects) == len(kinds)
    joined = found.objects[0]
    whole = np.max([drawn(item['segmentation']) for item in apart.objects if 'segmentation' in item] or [0], 0)
    if kinds != ('rectangle', 'rectangle'):
        assert (drawn(joined['segmentation']) == whole).all()
        assert joined['area'] == whole.sum()
    boxes = np.array([item['bbox'] for item in apart.objects])
    low, high = boxes[:, :2].min(0), (boxes[:, :2] + boxes[:, 2:]).max(0)
    assert joined['bbox'] == pytest.approx([*low, *(high - low)])
    record_fault('bad_data')


def test_parts_that_overlap_count_once():
    parts = [make_box('nut', find_corners(10, 10, right, 30), (HEIGHT, WIDTH)) for right in (30, 40)]
    (joined,) = join_groups((1, part) for part in parts)
    assert drawn(joined.mask).sum() == 600


@pytest.mark.parametrize('config', [BOXES, MASKS])
@pytest.mark.parametrize('degrees', [30, -120.5, 360])
def test_a_rotated_box_is_the_same_in_every_format(degrees, config, tmp_path, record_fault):
    """CVAT writes the box before its rotation, and the angle."""
    attributes = (
        '<attributes><attribute><name>occluded</name><value>0</value></attribute><attribute><name>rotation</name>'
        f'<value>{degrees}</value></attribute></attributes>'
    )
    left, top, right, bottom = BOX
    corners = find_corners(*BOX, degrees)
    outlined = dict(segmentation=[np.ravel(POLYGON).tolist()], bbox=[30, 10, 50, 40])
    turned = dict(bbox=[left, top, right - left, bottom - top], attributes=dict(rotation=degrees), segmentation=[])
    forms = dict(
        cvat=cvat(cvat_box(more=f'rotation="{degrees}"'), f'<polygon label="nut" points="{xy(POLYGON)}"/>'),
        coco=coco(turned, outlined),
        rotation=labelme(dict(points=corners.tolist(), shape_type='rotation'), dict(points=POLYGON)),
        oriented=labelme(dict(points=corners.tolist(), shape_type='oriented_rectangle'), dict(points=POLYGON)),
        voc=voc(voc_box(more=attributes), voc_box((30, 10, 80, 50))),
    )
    for form, write in forms.items():
        item = objects_of(write, tmp_path / form, config).objects[0]
        low, high = corners.min(0).clip(0), corners.max(0)
        assert item['bbox'] == pytest.approx([*low, *(high - low)], abs=0.01)
        if config == MASKS and form != 'voc':
            assert iou(drawn(item['segmentation']), draw(corners)) > 0.95
        if form == 'coco' and degrees == 360:
            assert item['bbox'] == turned['bbox']
    record_fault('bad_data')


def test_an_attribute_of_the_user_turns_no_box(tmp_path):
    item = dict(bbox=[20, 10, 40, 20], segmentation=[])
    for number, attributes in enumerate((dict(rotation='left'), dict(rotation=None), [], dict(rotation=float('nan')))):
        found = objects_of(coco(dict(item, attributes=attributes)), tmp_path / str(number), BOXES)
        assert found.objects[0]['bbox'] == [20, 10, 40, 20]
        assert 'rotated' not in found.report


MIXED = dict(
    labelme=labelme(dict(points=POLYGON), dict(points=[BOX[:2], BOX[2:]], shape_type='rectangle')),
    cvat=cvat(f'<polygon label="nut" points="{xy(POLYGON)}"/>', cvat_box()),
    yolo=yolo(f'0 {shares(POLYGON)}', f'0 {shares([(40, 20)])} {shares([(40, 20)])}'),
    coco=coco(dict(segmentation=[np.ravel(POLYGON).tolist()], bbox=[30, 10, 50, 40]), dict(bbox=[20, 10, 40, 20])),
)


@pytest.mark.parametrize('form', MIXED)
def test_boxes_among_outlines_are_drawn_as_masks(form, tmp_path, record_fault):
    found = objects_of(MIXED[form], tmp_path)
    assert drawn(found.objects[1]['segmentation']).sum() == 40 * 20
    assert '2 of 4 objects are boxes, whose masks are rectangles' in found.report
    assert check_data(BuiltDatasets(found.cfg, ()))[0].rows['objects trained on'] == '2'
    assert 'whose masks' not in objects_of(MIXED[form], tmp_path / 'boxes', BOXES).report
    record_fault('bad_data')


@pytest.mark.parametrize('form', ['voc', 'labelme'])
def test_difficult_objects_are_reported(form, tmp_path):
    write = dict(
        voc=voc(voc_box(), voc_box(more='<difficult>1</difficult>')),
        labelme=labelme(dict(points=POLYGON), dict(points=POLYGON, difficult=True)),
    )[form]
    found = objects_of(write, tmp_path, BOXES)
    assert [item['iscrowd'] for item in found.objects] == [0, 1]
    assert "difficult   2 objects are neither trained nor scored, as COCO's crowds" in found.report
