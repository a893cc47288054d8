"""Write the scenes of `layouts` in the export formats of CVAT, Label Studio, labelme, Roboflow and VIA."""

import base64
import shutil
from functools import partial
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

from .layouts import LAYOUTS, NAMES, scenes, to_coco, to_labels, to_voc, to_yolo, voc, write, write_lists, write_picture

COLOURS = {'background': (0, 0, 0), 'nut': (250, 50, 83), 'bolt': (51, 221, 255)}


def _names(*folders):
    """Return the names of all scenes by the folders of their splits."""
    names = {}
    for folder, name, *_ in scenes(*folders):
        names.setdefault(folder, []).append(name)
    return names


def _write_pictures(folder, prefix=''):
    for _, name, picture, _ in scenes():
        write_picture(folder, f'{prefix}{name}', picture)


def _labelmap(root):
    lines = ''.join(f'{name}:{red},{green},{blue}::\n' for name, (red, green, blue) in COLOURS.items())
    write(root / 'labelmap.txt', '# label:color_rgb:parts:actions\n' + lines)


def cvat_coco(root, subsets=('default', 'default')):
    """COCO 1.0."""
    files = {}
    for subset, name, picture, boxes in scenes(*subsets):
        write_picture(root / 'images' / subset, name, picture)
        files.setdefault(subset, []).append((f'{name}.jpg', boxes))
    for subset, pictures in files.items():
        write(root / 'annotations' / f'instances_{subset}.json',
              to_coco(pictures, box_only=True, attributes=dict(occluded=False, rotation=0.0)))  # fmt: skip


def cvat_voc(root, subsets=('default', 'default')):
    """PASCAL VOC 1.1."""
    for _, name, picture, boxes in scenes():
        write_picture(root / 'JPEGImages', name, picture)
        write(root / 'Annotations' / f'{name}.xml', to_voc(name, boxes))
    for subset, names in _names(*subsets).items():
        write_lists(root / 'ImageSets' / 'Main', {subset: names})
        write_lists(root / 'ImageSets' / 'Main', {f'nut_{subset}': names}, '  1')
    _labelmap(root)


def cvat_yolo(root):
    """YOLO 1.1, of darknet."""
    for _, name, picture, boxes in scenes():
        write_picture(root / 'obj_train_data', name, picture)
        write(root / 'obj_train_data' / f'{name}.txt', to_yolo(boxes))
    write_lists(root, dict(train=[f'data/obj_train_data/{name}' for _, name, *_ in scenes()]), '.jpg')
    write(root / 'obj.names', 'nut\nbolt\n')
    write(root / 'obj.data', 'classes = 2\nnames = data/obj.names\ntrain = data/train.txt\nbackup = backup/\n')


def cvat_ultralytics(root):
    """Ultralytics YOLO Detection 1.0: paths in lists begin with data/."""
    for split, name, picture, boxes in scenes():
        write_picture(root / 'images' / split, name, picture)
        write(root / 'labels' / split / f'{name}.txt', to_yolo(boxes))
    for split, names in _names().items():
        write_lists(root, {split: [f'data/images/{split}/{name}' for name in names]}, '.jpg')
    write(root / 'data.yaml', 'names:\n  0: nut\n  1: bolt\npath: .\ntrain: train.txt\nval: val.txt\n')


def cvat_masks(root, subsets=('default', 'default')):
    """Segmentation mask 1.1: colours of labelmap.txt, and a second folder of masks by object."""
    for _, name, picture, boxes in scenes():
        write_picture(root / 'JPEGImages', name, picture)
        colours = np.array(list(COLOURS.values()), np.uint8)[to_labels(boxes)][..., ::-1]
        for folder in ('SegmentationClass', 'SegmentationObject'):
            write_picture(root / folder, name, colours, '.png')
    write_lists(root / 'ImageSets' / 'Segmentation', _names(*subsets))
    _labelmap(root)


def label_studio_coco(root, folder='images/', prefix='8ab1-', **size):
    """Count all ids from 0."""
    _write_pictures(root / 'images', prefix)
    pictures = [(f'{folder}{prefix or "0123abcd-"}{name}.jpg', boxes) for _, name, _, boxes in scenes()]
    data = to_coco(pictures, 0, 0, (0, 1), ignore=0)
    for image in data['images']:
        image.update(size)
    write(root / 'result.json', data)


def label_studio_yolo(root):
    for _, name, picture, boxes in scenes():
        write_picture(root / 'images', f'8ab1-{name}', picture)
        write(root / 'labels' / f'8ab1-{name}.txt', to_yolo(boxes))
    write(root / 'classes.txt', 'nut\nbolt\n')
    write(root / 'notes.json', dict(categories=[dict(id=0, name='nut'), dict(id=1, name='bolt')], info={}))


def label_studio_voc(root):
    for _, name, picture, boxes in scenes():
        write_picture(root / 'images', f'8ab1-{name}', picture)
        write(root / 'Annotations' / f'8ab1-{name}.xml', to_voc(f'8ab1-{name}', boxes))


def label_studio_json(root):
    _write_pictures(root / 'images')
    write(root / 'project-1.json', [dict(id=1, annotations=[dict(id=1, result=[])], data=dict(image='/a.jpg'))])


def cvat_images(root, subsets=('default', 'default'), shape=None):
    """CVAT for images 1.1, with a tag and a polyline in each picture. `shape` writes the element of a box."""

    def box(x, y, side, name):
        return f'<box label="{name}" xtl="{x}" ytl="{y}" xbr="{x + side}" ybr="{y + side}" occluded="0" z_order="0"/>'

    images = ''
    for number, (subset, name, picture, boxes) in enumerate(scenes(*subsets)):
        write_picture(root / 'images' / subset, name, picture)
        shapes = ''.join((shape or box)(x, y, side, NAMES[kind]) for x, y, side, kind in boxes)
        images += (f'<image id="{number}" name="{name}.jpg" subset="{subset}" width="64" height="64">'
                   f'<tag label="night"/>{shapes}<polyline label="nut" points="1,1;9,9"/></image>')  # fmt: skip
    labels = ''.join(f'<label><name>{name}</name><type>any</type></label>' for name in NAMES)
    tag = '<label><name>night</name><type>tag</type></label>'
    write(root / 'annotations.xml', '<?xml version="1.0" encoding="utf-8"?>\n<annotations><version>1.1</version>'
          f'<meta><task><labels>{labels}{tag}</labels></task></meta>{images}</annotations>')  # fmt: skip


def cvat_polygon(x, y, side, name):
    points = ';'.join(f'{x + dx}.00,{y + dy}.00' for dx, dy in ((0, 0), (side, 0), (side, side), (0, side)))
    return f'<polygon label="{name}" points="{points}" z_order="0"/>'


def cvat_halves(x, y, side, name):
    """Two boxes of a group."""
    half = side // 2
    boxes = ((x, y, x + half, y + side), (x + half, y, x + side, y + side))
    return ''.join(f'<box label="{name}" group_id="{x}" xtl="{left}" ytl="{top}" xbr="{right}" ybr="{bottom}"/>'
                   for left, top, right, bottom in boxes)  # fmt: skip


def cvat_mask(x, y, side, name):
    """An object of a brush, with a row and a column of background around."""
    runs = ', '.join([str(side + 3), *[f'{side}, 2'] * (side - 1), str(side), str(side + 3)])
    return f'<mask label="{name}" rle="{runs}" left="{x - 1}" top="{y - 1}" width="{side + 2}" height="{side + 2}"/>'


def cvat_turned(x, y, side, name):
    """A box that is turned by a quarter, and so the same."""
    return f'<box label="{name}" xtl="{x}" ytl="{y}" xbr="{x + side}" ybr="{y + side}" rotation="90.00"/>'


def cvat_ellipse(x, y, side, name):
    half = side / 2
    return f'<ellipse label="{name}" cx="{x + half}" cy="{y + half}" rx="{half}" ry="{half}"/>'


def via_csv(root):
    _write_pictures(root)
    write(root / 'via_export_csv.csv', 'filename,file_size,file_attributes,region_count,region_id\n')


def labelme(root, shape=None, image_path='{}.jpg', folder='.', **more):
    """A JSON beside each picture, or in `folder`. `shape` writes the shape of a rectangle."""
    for _, name, picture, boxes in scenes():
        write_picture(root / 'images', name, picture)
        shapes = [dict(label=NAMES[kind], **(shape or labelme_rectangle)(x, y, side)) for x, y, side, kind in boxes]
        shapes.append(dict(label='edge', shape_type='line', points=[[1, 1], [9, 9]]))
        write(root / 'images' / folder / f'{name}.json',
              dict(version='5.5.0', flags={}, shapes=shapes, imagePath=image_path.format(name), imageData='aGVsbG8=',
                   imageHeight=64, imageWidth=64, **more))  # fmt: skip


def labelme_rectangle(x, y, side):
    return dict(shape_type='rectangle', points=[[x + side, y], [x, y + side]], group_id=None)


def labelme_polygon(x, y, side):
    return dict(points=[[x, y], [x + side, y], [x + side, y + side], [x, y + side]], group_id=x, shape_type=None)


def labelme_circle(x, y, side):
    half = side / 2
    return dict(shape_type='circle', points=[[x + half, y + half], [x + half, y]])


def labelme_mask(x, y, side):
    png = cv2.imencode('.png', np.full((side, side), 255, np.uint8))[1]
    mask = base64.b64encode(png).decode()
    return dict(shape_type='mask', points=[[x, y], [x + side - 1, y + side - 1]], mask=mask)


def labelme_coco(root):
    """labelme2coco.py: pictures, and a folder of pictures with drawn labels."""
    for _, name, picture, _ in scenes():
        write_picture(root / 'JPEGImages', name, picture)
        write_picture(root / 'Visualization', name, picture)
    write(root / 'annotations.json',
           to_coco([(f'JPEGImages/{name}.jpg', boxes) for _, name, _, boxes in scenes()], 0, 0, (0, 1)))  # fmt: skip


def labelme_voc(root):
    """labelme2voc.py."""
    for _, name, picture, boxes in scenes():
        write_picture(root / 'JPEGImages', name, picture)
        write_picture(root / 'SegmentationClassPNG', name, to_labels(boxes), '.png')
        write_picture(root / 'SegmentationObjectPNG', name, to_labels(boxes), '.png')
        write_picture(root / 'SegmentationClassVisualization', name, picture)
        (root / 'SegmentationClass').mkdir(exist_ok=True)
        np.save(root / 'SegmentationClass' / f'{name}.npy', to_labels(boxes))
    write(root / 'class_names.txt', '_background_\nnut\nbolt\n')


def _roboflow():
    """Return all scenes with the folders of their splits and the names of augmented copies."""
    return [(split, f'{name}_jpg.rf.0123456789abcdef', *more) for split, name, *more in scenes('train', 'valid')]


def roboflow_coco(root, group='parts'):
    """Put a category of all classes, without objects, first."""
    files = {}
    for folder, name, picture, boxes in _roboflow():
        write_picture(root / folder, name, picture)
        files.setdefault(folder, []).append((f'{name}.jpg', boxes))
    for folder, pictures in files.items():
        data = to_coco(pictures, 0, 0)
        data['categories'].insert(0, dict(id=0, name=group, supercategory='none'))
        write(root / folder / '_annotations.coco.json', data)
    write(root / 'README.roboflow.txt', 'parts - v1\n')


def roboflow_yolo(root):
    for folder, name, picture, boxes in _roboflow():
        write_picture(root / folder / 'images', name, picture)
        write(root / folder / 'labels' / f'{name}.txt', to_yolo(boxes))
    write(root / 'README.dataset.txt', '# parts\n')
    write(root / 'data.yaml', "train: ../train/images\nval: ../valid/images\ntest: ../test/images\n\nnc: 2\n"
          "names: ['nut', 'bolt']\n\nroboflow:\n  workspace: a\n")  # fmt: skip


def roboflow_darknet(root):
    for folder, name, picture, boxes in _roboflow():
        write_picture(root / folder, name, picture)
        write(root / folder / f'{name}.txt', to_yolo(boxes))
        write(root / folder / '_darknet.labels', 'nut\nbolt\n')


def roboflow_voc(root):
    for folder, name, picture, boxes in _roboflow():
        write_picture(root / folder, name, picture)
        write(root / folder / f'{name}.xml', to_voc(name, boxes))


def roboflow_masks(root):
    for folder, name, picture, boxes in _roboflow():
        write_picture(root / folder, name, picture)
        write_picture(root / folder, f'{name}_mask', to_labels(boxes), '.png')
        write(root / folder / '_classes.csv', 'Pixel Value, Class\n0, background\n1, nut\n2, bolt\n')


def via_coco(root):
    """Write ids of pictures: numbers in `images`, texts in `annotations`; and polygons without a list around."""
    data = to_coco([(f'{name}.jpg', boxes) for _, name, _, boxes in scenes()], 0, 0)
    for annotation in data['annotations']:
        annotation.update(image_id=str(annotation['image_id']), segmentation=annotation['segmentation'][0])
    _write_pictures(root)
    write(root / 'via_export_coco.json', data)


def via_json(root):
    regions = {}
    for _, name, picture, boxes in scenes():
        write_picture(root, name, picture)
        shapes = [dict(shape_attributes=dict(name='rect', x=x, y=y, width=side, height=side),
                       region_attributes=dict(name=NAMES[kind])) for x, y, side, kind in boxes]  # fmt: skip
        regions[f'{name}.jpg1234'] = dict(filename=f'{name}.jpg', size=1234, regions=shapes, file_attributes={})
    write(root / 'via_region_data.json', regions)


def voc_segmentation(root):
    """VOC 2012: a palette, 255 at borders, lists for segmentation and detection, and boxes."""
    voc(root)
    for _, name, _, boxes in scenes():
        labels = to_labels(boxes)
        labels[0] = 255
        image = Image.fromarray(labels, 'P')
        image.putpalette([0, 0, 0, 128, 0, 0, 0, 128, 0] + [0] * 756 + [224, 224, 192])
        (root / 'SegmentationClass').mkdir(exist_ok=True)
        image.save(root / 'SegmentationClass' / f'{name}.png')
        shutil.copytree(root / 'SegmentationClass', root / 'SegmentationObject', dirs_exist_ok=True)
    train, val = ['train_2', 'val_0', 'val_1'], ['train_0', 'train_1']
    write_lists(root / 'ImageSets' / 'Segmentation', dict(train=train, val=val, trainval=val + train))


VARIANTS = dict(
    cvat_coco_subsets=partial(cvat_coco, subsets=('Train', 'Validation')),
    **{
        f'cvat_images_{kind}': partial(cvat_images, shape=globals()[f'cvat_{kind}'])
        for kind in ('polygon', 'halves', 'mask', 'turned', 'ellipse')
    },
    cvat_images_subsets=partial(cvat_images, subsets=('Train', 'Validation')),
    **{
        f'labelme_{kind}': partial(labelme, shape=globals()[f'labelme_{kind}'])
        for kind in ('polygon', 'circle', 'mask')
    },
    labelme_windows=partial(labelme, folder='../labels', image_path='..\\images\\{}.jpg'),
    labelme_elsewhere=partial(labelme, image_path='C:\\Users\\me\\{}_old.jpg'),  # renamed with its JSON
    cvat_voc_subsets=partial(cvat_voc, subsets=('Train', 'Validation')),
    cvat_masks_subsets=partial(cvat_masks, subsets=('train', 'val')),
    label_studio_coco_windows=partial(label_studio_coco, folder='images\\'),
    label_studio_coco_own_pictures=partial(label_studio_coco, prefix=''),
    label_studio_coco_no_sizes=partial(label_studio_coco, width=None, height=None),
    label_studio_coco_upload=partial(label_studio_coco, folder='../../label-studio/data/media/upload/1/'),
    label_studio_coco_local_files=partial(label_studio_coco, folder='/data/local-files/?d=pictures%20of%20parts/'),
    roboflow_coco_one_name=partial(roboflow_coco, group='nut'),  # the category of all classes has a class's name
)


def made(kind, folder):
    root = Path(folder) / kind
    root.mkdir(parents=True)
    {**LAYOUTS, **globals(), **VARIANTS}[kind](root)
    return root
