"""Write the scenes of `layouts` in the export formats of CVAT, Label Studio, labelme, Roboflow and VIA."""

import shutil
from pathlib import Path

import numpy as np
from PIL import Image

from .layouts import LAYOUTS, NAMES, scenes, to_coco, to_labels, to_voc, to_yolo, voc, write, write_picture

COLOURS = {'background': (0, 0, 0), 'nut': (250, 50, 83), 'bolt': (51, 221, 255)}
SPLITS = ('train', 'val')


def _all():
    return [(split, *scene) for split in SPLITS for scene in scenes(split)]


def _write_pictures(folder, prefix=''):
    for _, name, picture, _ in _all():
        write_picture(folder, f'{prefix}{name}', picture)


def _labelmap(root):
    lines = ''.join(f'{name}:{red},{green},{blue}::\n' for name, (red, green, blue) in COLOURS.items())
    write(root / 'labelmap.txt', '# label:color_rgb:parts:actions\n' + lines)


def cvat_coco(root):
    """COCO 1.0: a subset called default."""
    pictures = [(name + '.jpg', boxes) for _, name, _, boxes in _all()]
    _write_pictures(root / 'images' / 'default')
    write(root / 'annotations' / 'instances_default.json',
           to_coco(pictures, box_only=True, attributes=dict(occluded=False, rotation=0.0)))  # fmt: skip


def cvat_coco_subsets(root):
    for split, subset in zip(SPLITS, ('Train', 'Validation')):
        for name, picture, _ in scenes(split):
            write_picture(root / 'images' / subset, name, picture)
        pictures = [(name + '.jpg', boxes) for name, _, boxes in scenes(split)]
        write(root / 'annotations' / f'instances_{subset}.json', to_coco(pictures))


def cvat_voc(root, subsets=('default', 'default')):
    """PASCAL VOC 1.1."""
    lists = {}
    for split, name, picture, boxes in _all():
        write_picture(root / 'JPEGImages', name, picture)
        write(root / 'Annotations' / f'{name}.xml', to_voc(name, boxes))
        lists.setdefault(subsets[SPLITS.index(split)], []).append(name)
    for subset, names in lists.items():
        write(root / 'ImageSets' / 'Main' / f'{subset}.txt', ''.join(f'{name}\n' for name in names))
        write(root / 'ImageSets' / 'Main' / f'nut_{subset}.txt', ''.join(f'{name}  1\n' for name in names))
    _labelmap(root)


def cvat_voc_subsets(root):
    cvat_voc(root, ('Train', 'Validation'))


def cvat_yolo(root):
    """YOLO 1.1, of darknet."""
    for _, name, picture, boxes in _all():
        write_picture(root / 'obj_train_data', name, picture)
        write(root / 'obj_train_data' / f'{name}.txt', to_yolo(boxes))
    write(root / 'train.txt', ''.join(f'data/obj_train_data/{name}.jpg\n' for _, name, *_ in _all()))
    write(root / 'obj.names', 'nut\nbolt\n')
    write(root / 'obj.data', 'classes = 2\nnames = data/obj.names\ntrain = data/train.txt\nbackup = backup/\n')


def cvat_ultralytics(root):
    """Ultralytics YOLO Detection 1.0: paths in lists begin with data/."""
    for split in SPLITS:
        for name, picture, boxes in scenes(split):
            write_picture(root / 'images' / split, name, picture)
            write(root / 'labels' / split / f'{name}.txt', to_yolo(boxes))
        write(root / f'{split}.txt', ''.join(f'data/images/{split}/{name}.jpg\n' for name, *_ in scenes(split)))
    write(root / 'data.yaml', 'names:\n  0: nut\n  1: bolt\npath: .\ntrain: train.txt\nval: val.txt\n')


def cvat_masks(root, subsets=('default', 'default')):
    """Segmentation mask 1.1: colours of labelmap.txt, and a second folder of masks by object."""
    lists = {}
    for split, name, picture, boxes in _all():
        write_picture(root / 'JPEGImages', name, picture)
        colours = np.array(list(COLOURS.values()), np.uint8)[to_labels(boxes)][..., ::-1]
        for folder in ('SegmentationClass', 'SegmentationObject'):
            write_picture(root / folder, name, colours, '.png')
        lists.setdefault(subsets[SPLITS.index(split)], []).append(name)
    for subset, names in lists.items():
        write(root / 'ImageSets' / 'Segmentation' / f'{subset}.txt', ''.join(f'{name}\n' for name in names))
    _labelmap(root)


def cvat_masks_subsets(root):
    cvat_masks(root, SPLITS)


def label_studio_coco(root, folder='images/'):
    """Count all ids from 0."""
    _write_pictures(root / 'images', '8ab1-')
    pictures = [(f'{folder}8ab1-{name}.jpg', boxes) for _, name, _, boxes in _all()]
    write(root / 'result.json', to_coco(pictures, 0, 0, (0, 1), ignore=0))


def label_studio_coco_windows(root):
    label_studio_coco(root, 'images\\')


def label_studio_coco_upload(root):
    label_studio_coco(root, '../../label-studio/data/media/upload/1/')


def label_studio_coco_local_files(root):
    """Quote the names of pictures like in URLs."""
    label_studio_coco(root, '/data/local-files/?d=pictures%20of%20parts/')


def label_studio_yolo(root):
    for _, name, picture, boxes in _all():
        write_picture(root / 'images', f'8ab1-{name}', picture)
        write(root / 'labels' / f'8ab1-{name}.txt', to_yolo(boxes))
    write(root / 'classes.txt', 'nut\nbolt\n')
    write(root / 'notes.json', dict(categories=[dict(id=0, name='nut'), dict(id=1, name='bolt')], info={}))


def label_studio_voc(root):
    for _, name, picture, boxes in _all():
        write_picture(root / 'images', f'8ab1-{name}', picture)
        write(root / 'Annotations' / f'8ab1-{name}.xml', to_voc(f'8ab1-{name}', boxes))


def label_studio_json(root):
    _write_pictures(root / 'images')
    write(root / 'project-1.json', [dict(id=1, annotations=[dict(id=1, result=[])], data=dict(image='/a.jpg'))])


def cvat_images(root):
    """CVAT for images 1.1."""
    _write_pictures(root / 'images')
    write(root / 'annotations.xml', '<annotations><version>1.1</version></annotations>')


def via_csv(root):
    _write_pictures(root)
    write(root / 'via_export_csv.csv', 'filename,file_size,file_attributes,region_count,region_id\n')


def labelme(root):
    for _, name, picture, boxes in _all():
        write_picture(root, name, picture)
        shapes = [dict(label=NAMES[kind], shape_type='rectangle', points=[[x, y], [x + side, y + side]])
                  for x, y, side, kind in boxes]  # fmt: skip
        write(root / f'{name}.json', dict(version='5.5.0', flags={}, shapes=shapes, imagePath=f'{name}.jpg'))


def labelme_coco(root):
    """labelme2coco.py: pictures, and a folder of pictures with drawn labels."""
    for _, name, picture, _ in _all():
        write_picture(root / 'JPEGImages', name, picture)
        write_picture(root / 'Visualization', name, picture)
    write(root / 'annotations.json',
           to_coco([(f'JPEGImages/{name}.jpg', boxes) for _, name, _, boxes in _all()], 0, 0, (0, 1)))  # fmt: skip


def labelme_voc(root):
    """labelme2voc.py."""
    for _, name, picture, boxes in _all():
        write_picture(root / 'JPEGImages', name, picture)
        write_picture(root / 'SegmentationClassPNG', name, to_labels(boxes), '.png')
        write_picture(root / 'SegmentationObjectPNG', name, to_labels(boxes), '.png')
        write_picture(root / 'SegmentationClassVisualization', name, picture)
        (root / 'SegmentationClass').mkdir(exist_ok=True)
        np.save(root / 'SegmentationClass' / f'{name}.npy', to_labels(boxes))
    write(root / 'class_names.txt', '_background_\nnut\nbolt\n')


def roboflow_coco(root, group='parts'):
    """Put a category of all classes, without objects, first."""
    for split, folder in zip(SPLITS, ('train', 'valid')):
        names = {name: f'{name}_jpg.rf.0123456789abcdef' for name, *_ in scenes(split)}
        for name, picture, _ in scenes(split):
            write_picture(root / folder, names[name], picture)
        data = to_coco([(f'{names[name]}.jpg', boxes) for name, _, boxes in scenes(split)], 0, 0)
        data['categories'].insert(0, dict(id=0, name=group, supercategory='none'))
        write(root / folder / '_annotations.coco.json', data)
    write(root / 'README.roboflow.txt', 'parts - v1\n')


def roboflow_coco_one_name(root):
    """Give the category of all classes the name of a class."""
    roboflow_coco(root, 'nut')


def roboflow_yolo(root):
    for split, folder in zip(SPLITS, ('train', 'valid')):
        for name, picture, boxes in scenes(split):
            write_picture(root / folder / 'images', f'{name}_jpg.rf.0123456789abcdef', picture)
            write(root / folder / 'labels' / f'{name}_jpg.rf.0123456789abcdef.txt', to_yolo(boxes))
    write(root / 'README.dataset.txt', '# parts\n')
    write(root / 'data.yaml', "train: ../train/images\nval: ../valid/images\ntest: ../test/images\n\nnc: 2\n"
           "names: ['nut', 'bolt']\n\nroboflow:\n  workspace: a\n")  # fmt: skip


def roboflow_darknet(root):
    for split, folder in zip(SPLITS, ('train', 'valid')):
        for name, picture, boxes in scenes(split):
            write_picture(root / folder, name, picture)
            write(root / folder / f'{name}.txt', to_yolo(boxes))
        write(root / folder / '_darknet.labels', 'nut\nbolt\n')


def roboflow_voc(root):
    for split, folder in zip(SPLITS, ('train', 'valid')):
        for name, picture, boxes in scenes(split):
            write_picture(root / folder, f'{name}_jpg.rf.0123456789abcdef', picture)
            write(root / folder / f'{name}_jpg.rf.0123456789abcdef.xml', to_voc(name, boxes))


def roboflow_masks(root):
    for split, folder in zip(SPLITS, ('train', 'valid')):
        for name, picture, boxes in scenes(split):
            write_picture(root / folder, f'{name}_jpg.rf.0123456789abcdef', picture)
            write_picture(root / folder, f'{name}_jpg.rf.0123456789abcdef_mask', to_labels(boxes), '.png')
        write(root / folder / '_classes.csv', 'Pixel Value, Class\n0, background\n1, nut\n2, bolt\n')


def via_coco(root):
    """Write ids of pictures: numbers in `images`, texts in `annotations`."""
    data = to_coco([(f'{name}.jpg', boxes) for _, name, _, boxes in _all()], 0, 0)
    for annotation in data['annotations']:
        annotation['image_id'] = str(annotation['image_id'])
    _write_pictures(root)
    write(root / 'via_export_coco.json', data)


def via_json(root):
    regions = {}
    for _, name, picture, boxes in _all():
        write_picture(root, name, picture)
        shapes = [dict(shape_attributes=dict(name='rect', x=x, y=y, width=side, height=side),
                       region_attributes=dict(name=NAMES[kind])) for x, y, side, kind in boxes]  # fmt: skip
        regions[f'{name}.jpg1234'] = dict(filename=f'{name}.jpg', size=1234, regions=shapes, file_attributes={})
    write(root / 'via_region_data.json', regions)


def voc_segmentation(root):
    """VOC 2012: a palette, 255 at borders, lists for segmentation and detection, and boxes."""
    voc(root)
    for _, name, _, boxes in _all():
        labels = to_labels(boxes)
        labels[0] = 255
        image = Image.fromarray(labels, 'P')
        image.putpalette([0, 0, 0, 128, 0, 0, 0, 128, 0] + [0] * 756 + [224, 224, 192])
        (root / 'SegmentationClass').mkdir(exist_ok=True)
        image.save(root / 'SegmentationClass' / f'{name}.png')
        shutil.copytree(root / 'SegmentationClass', root / 'SegmentationObject', dirs_exist_ok=True)
    lists = dict(train=('train_2', 'val_0', 'val_1'), val=('train_0', 'train_1'))
    for split, names in lists.items():
        write(root / 'ImageSets' / 'Segmentation' / f'{split}.txt', ''.join(f'{name}\n' for name in names))
    write(root / 'ImageSets' / 'Segmentation' / 'trainval.txt', 'train_0\ntrain_1\ntrain_2\nval_0\nval_1\n')


def made(kind, folder):
    root = Path(folder) / kind
    root.mkdir(parents=True)
    {**LAYOUTS, **globals()}[kind](root)
    return root
