"""Run the commands of README, of the guides' first blocks and of the recipes, with a trained detector and segmentor."""

import json
import re
import shutil
from importlib.util import find_spec
from pathlib import Path

import cv2
import numpy as np
import pytest
from helpers import ROOT, edited_json
from helpers.in_process import error_of, run_well
from helpers.openmmlab.own_data import SIZE, detection, make_own_data, segmentation
from PIL import Image
from test_site import FENCE, commands

import swin_backbone

pytestmark = [pytest.mark.train, pytest.mark.usefixtures('quick_exports')]
for package in ('mmdet', 'mmseg', 'onnxscript', 'onnxruntime', 'openvino', 'tifffile'):
    pytest.importorskip(package, reason=f'{package} is not installed')

KINDS = ('detector', 'segmentor')
METRICS = dict(detector='coco/segm_mAP_50', segmentor='mIoU')
MEASURED = {}
FORMATS = dict(detector='onnx', segmentor='openvino')  # tests/workbench/export/test_cells.py (slow) has all
ELSEWHERE = ('more_bands.md', 'other_toolboxes.md')  # tests/workbench/export/test_bands.py, tests/openmmlab/swap
GUIDES = [page for page in sorted((ROOT / 'docs' / 'guides').glob('*.md')) if page.name not in ELSEWHERE]
RECIPES = ROOT / 'docs' / 'guides' / 'recipes.md'
NOT_RUN = ('make', 'pip', 'docker', 'jupyter', 'bash')  # tests/tools/test_train.py starts processes
# One map of a detector and two of a segmentor: an export takes its time for each node.
SIZES = dict(
    detector=(
        *('train_cfg.max_epochs=30', 'model.backbone.out_indices=(2,)', 'model.neck.in_channels=[128]'),
        *('model.backbone.depths=[1,1,1,1]', 'model.roi_head.mask_head.num_convs=1'),
        *('model.neck.num_outs=1', 'model.rpn_head.anchor_generator.strides=[16]'),
        *('model.rpn_head.anchor_generator.scales=[3]', 'model.roi_head.bbox_roi_extractor.featmap_strides=[16]'),
        'model.roi_head.mask_roi_extractor.featmap_strides=[16]',
    ),
    segmentor=(
        *('train_cfg.max_iters=30', 'model.backbone.out_indices=(0,1)', 'model.decode_head.in_channels=[32,64]'),
        'model.backbone.depths=[1,1,1,1]',
        *('model.decode_head.in_index=[0,1]', 'model.decode_head.pool_scales=(1,2)'),
        *('model.auxiliary_head.in_channels=64', 'model.auxiliary_head.in_index=1'),
    ),
)
LEARN = (
    *('optim_wrapper.optimizer.lr=0.003', 'param_scheduler=[]'),
    *('train_cfg.val_interval=30', 'default_hooks.checkpoint.interval=30'),
)
SMALL = (
    *('--epochs', '1', '--batch', '2', '--shape', '64', '64', '--cfg-options'),
    *('model.backbone.init_cfg=None', 'model.backbone.depths=[1,1,1,1]'),
    'default_hooks.checkpoint.save_optimizer=False',
    *(f'{part}_dataloader.{setting}' for part in ('train', 'val')
      for setting in ('num_workers=0', 'persistent_workers=False')),
)  # fmt: skip
OF_A_MODEL = dict(
    mask_rcnn=('model.train_cfg.rcnn.sampler.num=16',),
    upernet=('model.decode_head.channels=16', 'model.auxiliary_head.channels=16'),
)
STANDS_FOR = {
    **{'INPUT...': ['pictures', 'clip.mp4'], 'pictures/': ['pictures'], 'PICTURE': ['city.tif']},
    **{'slide.svs': ['slide.tif'], '1024': ['64', '--overlap', '32'], '128': ['32'], '64': ['4'], '256': ['64']},
    **{'swin-t': ['swin-nano'], '/data/bolts': ['own'], '/data/streets': ['own'], 'OUT': ['official.pth']},
}


@pytest.fixture(scope='module')
def work(tmp_path_factory):
    """Make a folder with data and trained models."""
    folder = tmp_path_factory.mktemp('work')
    own = make_own_data(folder / 'own')
    for split in ('train', 'val'):
        with edited_json(own / f'{split}.json') as coco:
            for one in coco['annotations']:
                one['category_id'] = 3  # the pictures show no difference between the classes
    (folder / 'pictures').symlink_to(own / 'images' / 'val')
    (folder / 'configs').symlink_to(ROOT / 'configs')
    picture = cv2.imread(str(own / 'images' / 'val' / '0.png'))
    video = cv2.VideoWriter(str(folder / 'clip.mp4'), cv2.VideoWriter_fourcc(*'mp4v'), 10, picture.shape[1::-1])
    for _ in range(3):
        video.write(picture)
    video.release()
    import tifffile

    with tifffile.TiffWriter(folder / 'slide.tif') as file:  # two levels
        whole = np.tile(picture[..., ::-1], (4, 4, 1))
        file.write(whole, tile=(64, 64), photometric='rgb', subifds=1)
        file.write(whole[::2, ::2], tile=(64, 64), photometric='rgb', subfiletype=1)
    shutil.copy(folder / 'slide.tif', folder / 'city.tif')
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for kind, data in zip(KINDS, (detection, segmentation)):
            run_well('tools/print_config.py', *data(own, *LEARN, *SIZES[kind]), '--save-path', f'{kind}.py')
            run_well('tools/train.py', f'{kind}.py', '--work-dir', kind)
            shutil.copy((folder / kind / 'last_checkpoint').read_text(), f'{kind}.pth')
    return folder


@pytest.fixture
def here(work, monkeypatch):
    monkeypatch.chdir(work)
    return work


def fill(words, kind):
    """Return the arguments of a command with the files of a model, made short."""
    own = {'CONFIG': [f'{kind}.py'], 'CKPT': [f'{kind}.pth'], 'IN': [f'{kind}.pth'], 'DIR': [f'exported-{kind}']}
    filled = []
    for before, word in zip(('', *words), words):
        filled += ['own'] if before == '--data' else own.get(word, STANDS_FOR.get(word, [word]))
    if words[0] == 'tools/train.py':
        if 'CONFIG' not in words:
            filled += (*(() if '--data' in words else ('--data', 'own')), *SMALL)
            filled += next((option for name, option in OF_A_MODEL.items() if name in words[1]), ())
        else:
            filled += ('--work-dir', kind) if '--resume' in words else ('--work-dir', 'again', '--epochs', 1)
    if words[0] == 'tools/export.py':
        filled += ('--shape', 96, 96)  # the graph of free sizes takes thrice the time
        filled += ('--format', FORMATS[kind])
    if words[0] == 'tools/infer.py' and '--out-dir' not in words:
        filled += ('--out-dir', f'outputs-{kind}', '--overwrite')
    return [f'{word}-{kind}' if word in ('seen', 'drawn', 'report') else word for word in filled]


def cases():
    """Yield each command with a kind of model, and a test id. Commands that `fill` makes equal are one."""
    seen = []
    for page in (ROOT / 'README.md', *GUIDES):
        text = page.read_text(encoding='utf-8')
        if page in GUIDES and page != RECIPES:
            text = next((match[0] for match in FENCE.finditer(text) if match[2] == 'bash'), '')
        for command in commands(text):
            if command[0] in NOT_RUN or command[:3] == ['python', '-m', 'pip']:
                continue
            words = command[1:]
            of_a_model = {'CONFIG', 'DIR'} & {*words} and '--data' not in words and page != RECIPES
            for kind in KINDS if of_a_model else KINDS[:1]:
                if fill(words, kind) not in seen:
                    seen.append(fill(words, kind))
                    yield pytest.param(words, kind, id=f'{page.name} {" ".join(words)}, {kind}')


@pytest.mark.parametrize(('words', 'kind'), cases())
def test_a_command(words, kind, here):
    result = run_well(*fill(words, kind))
    if words[0] == 'tools/export.py':
        of_test_set, *_ = json.loads((here / f'exported-{kind}' / 'deploy.json').read_text())['verification']
        assert of_test_set['picture'] == [SIZE, SIZE]
        assert of_test_set['compared'] >= 2
    if words[0] == 'tools/test.py':
        metric = float(re.search(rf'^{METRICS[kind]}: ([\d.]+)', result.stdout, re.M)[1])
        assert metric > 0.5
        assert metric == pytest.approx(MEASURED.setdefault(kind, metric), rel=0.01)  # of the checkpoint and the folder
    if words[0] == 'tools/infer.py':
        check_predictions(here / f'outputs-{kind}', kind, frames=2 + 3 * ('INPUT...' in words))


def check_predictions(out, kind, frames):
    """Check that each frame has its square."""
    assert {path.name for path in (out / 'overlays').iterdir()} >= {'0.jpg', '1.jpg'}
    if kind == 'detector':
        objects = json.loads((out / 'results.json').read_text())
        assert {one['image_id'] for one in objects if one['score'] > 0.5} == set(range(1, frames + 1))
    for path in (out / 'labels').glob('*.png') if kind == 'segmentor' else ():
        assert 0.2 < np.asarray(Image.open(path)).mean() < 0.4  # the square is a quarter


PACKAGES = {"type='Albu'": 'albumentations', 'import slice_coco': 'sahi', 'import optuna': 'optuna'}  # by a use
SMALLER = {
    **{'CONFIG': 'detector.py', 'DIR': 'own', '1024': '32', '896': '24', '1333, 800': '96, 96', '640': '96'},
    **{'1280': '192', 'switch_epoch=10': 'switch_epoch=1', 'epochs=4': 'epochs=1', 'n_trials=20': 'n_trials=1'},
    **{'(1e-4, 3e-4)': '(1e-4,)', '(0.01, 0.05)': '(0.01,)'},
}
SECTIONS = [part for part in RECIPES.read_text(encoding='utf-8').split('\n## ') if '```python' in part]


@pytest.mark.parametrize('section', SECTIONS, ids=lambda section: section.partition('\n')[0])
def test_the_python_of_a_recipe(section, here, tmp_path):
    missing, names = [], {}
    for code in (match[3] for match in FENCE.finditer(section) if match[2] == 'python'):
        for before, after in SMALLER.items():
            code = code.replace(before, after)
        package = next((package for use, package in PACKAGES.items() if use in code), 'torch')
        if not find_spec(package):
            missing.append(package)
        elif code.startswith('_base_'):
            (here / 'recipe.py').write_text(code)
            run_well('tools/train.py', 'recipe.py', '--epochs', 2, '--work-dir', tmp_path)
        else:
            exec(code, names)
    if 'tiles' in section:
        assert len(list(Path('tiles', 'labels', 'val').iterdir())) == 8  # 2 pictures of 48x48 in tiles of 32x32
    if missing:
        pytest.skip(f'not installed: {", ".join(missing)}')


@pytest.fixture
def exported(here):
    """The folders that README's command made."""
    if not Path('exported-segmentor', 'deploy.json').exists():
        pytest.skip('the command of README did not run')


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('weights', ['{}.pth', 'exported-{}'])
def test_load(kind, weights, exported):
    model = swin_backbone.load(f'{kind}.py', weights.format(kind))
    assert model.test()[METRICS[kind]] > 0.5
    sample = model.predict('pictures')[0].sample
    assert sample.pred_instances.scores.max() > 0.5 if kind == 'detector' else sample.pred_sem_seg.data.any()


def test_accelerate(here):
    page = (ROOT / 'docs' / 'guides' / 'accelerate.md').read_text(encoding='utf-8')
    code = next(match[3] for match in FENCE.finditer(page) if match[2] == 'python')
    for word, file in dict(CONFIG='detector.py', CKPT='detector.pth', PICTURE='pictures/0.png').items():
        assert word in code
        code = code.replace(word, file)
    exec(code, {})


def test_a_test_of_an_exported_detector_draws(exported):
    result = run_well('tools/test.py', 'detector.py', 'exported-detector', '--show-dir', 'drawn-exported')
    assert '2 pictures in drawn-exported' in result.stdout


@pytest.mark.parametrize('kind', KINDS)
def test_an_exported_folder_of_another_kind_is_refused(kind, exported, record_fault):
    other = KINDS[1 - KINDS.index(kind)]
    assert f'exported-{other} holds a model of mm' in error_of('tools/test.py', f'{kind}.py', f'exported-{other}')
    record_fault('tampered')
