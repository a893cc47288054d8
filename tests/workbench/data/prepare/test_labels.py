"""Values of label files: classes, those called void, and 255."""

import numpy as np
import pytest
from helpers.openmmlab import layouts
from helpers.openmmlab.own_folders import LABELS, fill, labels_of
from mmengine.registry import TRANSFORMS
from PIL import Image

from swin_backbone.checks import DataError
from swin_backbone.workbench.data.prepare import labels
from swin_backbone.workbench.data.prepare.folder import read_labelmap


def write_labels(root, values, names=None, size=16):
    """Write five pictures with labels of some values each, and a file of names."""
    rng = np.random.default_rng(0)
    for number in range(5):
        layouts.write_picture(root / 'images', str(number), np.zeros((size, size, 3), np.uint8))
        labels = rng.choice(np.array(values, np.int32), (size, size))
        labels.flat[: len(values)] = values
        path = root / 'labels' / f'{number}.png'
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(labels.astype(np.uint16 if max(values) > 255 else np.uint8)).save(path)
    if names is not None:
        layouts.write(root / 'classes.txt', '\n'.join(names))
    return root


def classes_of(root, work, names=None):
    """Return the names of classes, the class of each value of the first file, and the report."""
    cfg, report = fill(LABELS, root, work, names=names)
    head = cfg.model.decode_head
    assert head.ignore_index == cfg.model.auxiliary_head.ignore_index == cfg.val_evaluator.ignore_index == 255
    assert cfg.model.data_preprocessor.seg_pad_val == 255
    assert head.num_classes == len(cfg.train_dataloader.dataset.metainfo.classes)
    classes = {}
    for name, written in labels_of(cfg).items():
        given = np.asarray(Image.open(root / 'labels' / name.replace('.jpg', '.png')))
        for value in np.unique(given).tolist():
            (there,) = np.unique(written[given == value])
            assert classes.setdefault(value, int(there)) == there
    return cfg.train_dataloader.dataset.metainfo.classes, classes, report


@pytest.mark.parametrize(('names', 'values', 'classes', 'expected'), [
    (['void', 'road', 'tree'], [0, 1, 2, 255], ('road', 'tree'), {0: 255, 1: 0, 2: 1, 255: 255}),
    (['road', 'tree', 'Void'], [0, 1, 2, 255], ('road', 'tree'), {0: 0, 1: 1, 2: 255, 255: 255}),
    (['road', 'unlabelled', 'tree'], [0, 1, 2], ('road', 'tree'), {0: 0, 1: 255, 2: 1}),
    (['ignore', 'road', 'tree', 'void'], [0, 1, 2, 3], ('road', 'tree'), {0: 255, 1: 0, 2: 1, 3: 255}),
    (['0 road', '7 tree', '255 void'], [0, 7, 255], ('road', 'tree'), {0: 0, 7: 1, 255: 255}),
    (['0 void', '7 tree', '255 road'], [0, 7, 255], ('tree', 'road'), {0: 255, 7: 0, 255: 1}),
    (['road'], [0, 255], ('road',), {0: 0, 255: 255}),
    (['0 road', '255 void'], [0, 255], ('road',), {0: 0, 255: 255}),
    (['road', 'void'], [0, 255], ('road',), {0: 0, 255: 255}),
    (['road', 'tree'], [0, 255], ('road', 'tree'), {0: 0, 255: 1}),
    (['road', 'tree', 'sky'], [0, 255], ('road', 'tree', 'sky'), {0: 0, 255: 255}),
    (None, [0, 255], ('background', 'foreground'), {0: 0, 255: 1}),
    (None, [0, 1, 255], ('class 0', 'class 1'), {0: 0, 1: 1, 255: 255}),
    (['__ignore__', '_background_', 'road'], [0, 1, 255], ('_background_', 'road'), {0: 0, 1: 1, 255: 255}),
])  # fmt: skip
@pytest.mark.parametrize('by_option', [False, True])
def test_void_and_255_are_ignored(by_option, names, values, classes, expected, tmp_path, record_fault):
    if by_option and (names is None or names[0][0] == '0'):
        pytest.skip('an option has names alone')
    root = write_labels(tmp_path / 'own', values, None if by_option else names)
    found, there, report = classes_of(root, tmp_path / 'work', names if by_option else None)
    assert (found, there) == (classes, expected)
    void = [name for name in names or () if name.lower().endswith(('void', 'ignore', 'unlabelled'))]
    assert [f'{name.split()[-1]}' in report.partition('ignored')[2] for name in void] == [True] * len(void)
    assert ('one class' in report) == (len(classes) == 1)
    assert ('no pixel of the classes tree, sky' in report) == ('sky' in classes)
    assert 'black and white' in report or classes != ('background', 'foreground')
    record_fault('bad_data')


def test_classes_of_a_sample_may_have_pixels_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setattr(labels, 'MAX_LABELS', 3)
    root = write_labels(tmp_path / 'own', [0, 1], ['road', 'tree', 'sky'])
    _, _, report = classes_of(root, tmp_path / 'work', None)
    assert 'of the values in 3 of ' in report
    assert 'no pixel of the classes sky in the files that were read' in report


def test_a_colour_called_void_is_ignored(tmp_path):
    lines = 'road:128,64,128::\nvoid:0,0,0::\ntree:0,255,0::\n'
    root = coloured(tmp_path / 'own', lines, [(128, 64, 128), (0, 0, 0), (0, 255, 0)])
    cfg, report = fill(LABELS, root, tmp_path / 'work')
    assert cfg.train_dataloader.dataset.metainfo.classes == ('road', 'tree')
    assert labels_of(cfg)['0.jpg'][0].tolist() == [0, 255, 1] * 3
    assert 'void of labelmap.txt' in report


def coloured(root, lines, colours):
    """Write pictures, labels of some colours, and labelmap.txt."""
    for number in range(5):
        layouts.write_picture(root / 'images', str(number), np.zeros((8, 9, 3), np.uint8))
        labels = np.array(colours, np.uint8)[np.arange(72).reshape(8, 9) % len(colours)]
        (root / 'labels').mkdir(exist_ok=True)
        Image.fromarray(labels).save(root / 'labels' / f'{number}.png')
    layouts.write(root / 'labelmap.txt', lines)
    return root


@pytest.mark.parametrize(
    ('lines', 'message'),
    [
        ('road:128,64,128::\ntree:0,255\n', "takes lines as 'road:128,64,128::', .*, got 'tree:0,255'"),
        ('road:128,64,128::\ntree:0,256,0::\n', "with numbers up to 255, got 'tree:0,256,0::'"),
        ('road:128,64,128::\ntree:128,64,128::\n', 'a colour of its own for each class, tree has that of road'),
        ('road:128,64,128::\ntree:::\n', 'a colour of its own for each class, tree has none'),
        ('road:128,64,128::\nroad:0,255,0::\n', 'got road twice'),
    ],
)
def test_a_class_without_a_colour_of_its_own_is_named(lines, message, tmp_path, record_fault):
    """Its line was skipped, or the class took the pixels of another."""
    with pytest.raises(DataError, match=message):
        fill(LABELS, coloured(tmp_path / 'own', lines, [(128, 64, 128), (0, 255, 0)]), tmp_path / 'work')
    record_fault('bad_data')


def test_classes_of_colours_without_pixels_are_named(tmp_path):
    lines = '# label:color_rgb:parts:actions\nroad: 128, 64, 128::\nc#:0,255,0:head,body:\nsky:0,0,255::\n'
    root = coloured(tmp_path / 'own', lines, [(128, 64, 128), (0, 255, 0)])
    cfg, report = fill(LABELS, root, tmp_path / 'work')
    assert cfg.train_dataloader.dataset.metainfo.classes == ('road', 'c#', 'sky')
    assert 'no pixel of the classes sky' in report


def test_a_labelmap_of_names_alone_is_another_format(tmp_path):
    layouts.write(tmp_path / 'labelmap.txt', 'road\ntree\n')
    assert read_labelmap(tmp_path / 'labelmap.txt') == {}


@pytest.mark.parametrize('many', [255, 256, 257, 300])
def test_there_are_255_classes_at_most(many, tmp_path, record_fault):
    """Beside 255 classes, the value 255 is ignored. The last of 256 classes may be void."""
    names = [f'kind {n}' for n in range(many)]
    root = write_labels(tmp_path / 'own', list(range(min(many, 256))), names)
    if many == 255:
        assert len(classes_of(root, tmp_path / 'work')[0]) == 255
        return
    with pytest.raises(DataError, match=rf'classes.txt names {many} classes, and labels take 1 to 255, .*: 255 is'):
        fill(LABELS, root, tmp_path / 'work')
    for place in (0, 77, 255):
        layouts.write(root / 'classes.txt', '\n'.join([*names[:place], 'void', *names[place + 1 : 256]]))
        found, there, _ = classes_of(root, tmp_path / f'work{place}')
        assert found == tuple(name for name in names[:256] if name != names[place])
        assert there == {**{n: n - (n > place) for n in range(256)}, place: 255}
    record_fault('bad_data')


@pytest.mark.parametrize('step', [
    dict(type='RandomRotate', prob=1.0, degree=40.0), dict(type='Pad', size=(24, 24)),
    dict(type='RandomCrop', crop_size=(8, 8), cat_max_ratio=0.75),
], ids=lambda step: step['type'])  # fmt: skip
def test_transforms_ignore_what_the_labels_ignore(step, tmp_path, record_fault):
    """mmseg's transforms write and count 255, whatever the ignored value of a head."""
    root = write_labels(tmp_path / 'own', [0, 1, 2, 255], ['road', 'tree', 'void'])
    cfg, _ = fill(LABELS, root, tmp_path / 'work')
    labels = labels_of(cfg)['0.jpg']
    with_scope = TRANSFORMS.switch_scope_and_registry('mmseg')
    with with_scope as registry:
        transform = registry.build(step)
    results = dict(img=np.zeros((16, 16, 3), np.uint8), gt_seg_map=labels.copy(), img_shape=(16, 16))
    results['seg_fields'] = ['gt_seg_map']
    allowed = {*range(cfg.model.decode_head.num_classes), cfg.model.decode_head.ignore_index}
    assert set(np.unique(transform(results)['gt_seg_map'])) <= allowed
    if 'ignore_index' in vars(transform):
        assert transform.ignore_index == cfg.model.decode_head.ignore_index
    record_fault('bad_data')


def test_an_unreadable_picture_is_no_error_of_its_label(tmp_path):
    root = write_labels(tmp_path / 'own', [0, 1, 2], ['void', 'road', 'tree'])
    (root / 'images' / '3.jpg').write_bytes(b'no picture')
    cfg, _ = fill(LABELS, root, tmp_path / 'work')
    assert set(np.unique(labels_of(cfg)['0.jpg'])) == {0, 1, 255}
