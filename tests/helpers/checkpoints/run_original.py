"""Run a model of an OpenMMLab 1 repository (mmdet 2, mmseg 0.x) with mmcv 1, in a separate process.

    python run_original.py REPOSITORY MMCV FOLDER

The module names clash with the installed toolboxes, hence the process. FOLDER/job.pth holds a config, options for the
config, the toolbox, the mmcv release to report, and an image. The script writes the weights to model.pth, and the
outputs for the image to computed.pth.
"""

import builtins
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import numpy as np


def stand_in(name, **members):
    module = ModuleType(name)
    vars(module).update(members)
    sys.modules[name] = module
    return module


def prepare(repository, mmcv_folder):
    """Provide imports for code of 2021: numpy's old names, mmcv 1 with operators, and a dummy fairscale."""
    for name in ('bool', 'float', 'int', 'object'):
        if name not in vars(np):
            setattr(np, name, getattr(builtins, name))
    stand_in('swin_backbone', __path__=[str(Path(__file__).parents[3] / 'swin_backbone')])  # registers no models
    from swin_backbone.compat import import_torchvision

    import_torchvision()
    sys.path[:0] = [repository, mmcv_folder]
    import mmcv

    from swin_backbone.mmcv_ops import ext

    sys.modules['mmcv._ext'] = mmcv._ext = ext
    for name, members in (('mmcv_custom', ['load_checkpoint']), ('einops', ['rearrange', 'repeat'])):
        if find_spec(name) is None:  # Swin calls no function of the package
            stand_in(name, **dict.fromkeys(members))
    stand_in('fairscale')
    stand_in('fairscale.nn')
    stand_in('fairscale.nn.checkpoint', checkpoint_wrapper=lambda module: module)


def build(config, options, toolbox, mmcv_version):
    import mmcv

    mmcv.__version__ = mmcv_version  # mmdet releases check the mmcv version
    if toolbox == 'mmseg':
        from mmseg.models import build_segmentor as build_model
    else:
        from mmdet.models import build_detector as build_model
    if 'projects/' in config:
        import projects.models  # noqa: F401 - registers Co-DETR
    cfg = mmcv.Config.fromfile(config)
    cfg.merge_from_dict(options)
    return build_model(cfg.model)


def spread(model, torch):
    """Randomise all weights, so a swap of two weights changes the outputs."""
    for name, parameter in model.named_parameters():
        if 'init_proposal_bboxes' in name:  # regions
            continue
        is_norm = ('norm' in name or '.bn.' in name or '.gn.' in name) and name.endswith('weight')
        # Small weights keep boxes inside the image. Releases treat boxes without width differently.
        torch.nn.init.normal_(parameter, mean=float(is_norm), std=0.002 if '_reg.' in name else 0.05)
    for name, buffer in model.named_buffers():
        if name.endswith('running_var'):
            buffer.uniform_(0.5, 2)
        elif name.endswith('running_mean'):
            buffer.normal_(std=0.1)
    return model.eval()


def outputs_of_htc(model, x_BCHW):
    """Return the outputs of all heads, for the image or for synthetic regions. Works in mmdet 2 and mmdet 3."""
    import torch

    maps = model.extract_feat(x_BCHW)
    region_NCHW = torch.linspace(-9, 9, 2 * 256 * 14 * 14).view(2, 256, 14, 14).mul(97).sin()
    outputs = [*model.rpn_head(maps)[0], *model.rpn_head(maps)[1], *model.roi_head.semantic_head(maps)]
    before = None
    for boxes, masks in zip(model.roi_head.bbox_head, model.roi_head.mask_head):
        outputs += boxes(region_NCHW[..., :7, :7])
        logits, before = masks(region_NCHW, before)
        outputs += [logits, before]
    return outputs


def compute(model, x_BCHW, toolbox):
    """Return logits (segmentor), head outputs (HTC, one-stage detector), or boxes (n, 5) and masks by class."""
    import torch

    if toolbox == 'mmseg':
        return model.decode_head(model.extract_feat(x_BCHW))
    if 'Co' not in type(model).__name__ and hasattr(model, 'bbox_head'):  # releases select boxes differently
        return model.bbox_head(model.extract_feat(x_BCHW))
    if type(model).__name__ == 'HybridTaskCascade':  # with random weights all scores are 1
        return outputs_of_htc(model, x_BCHW)
    height, width = x_BCHW.shape[2:]
    shape = (height, width, 3)
    meta = dict(
        img_shape=shape, ori_shape=shape, pad_shape=shape, batch_input_shape=(height, width),
        scale_factor=np.ones(4, np.float32), flip=False, flip_direction='horizontal',
    )  # fmt: skip
    results = model.simple_test(x_BCHW, [meta], rescale=True)[0]
    boxes, masks = results if isinstance(results, tuple) else (results, None)
    found = {'boxes': [torch.from_numpy(np.asarray(b)) for b in boxes]}
    if masks is not None:
        found['masks'] = [torch.from_numpy(np.asarray(m, dtype=bool)) for m in masks]
    return found


def main(repository, mmcv_folder, folder):
    prepare(repository, mmcv_folder)
    import torch

    torch.manual_seed(0)
    job = torch.load(f'{folder}/job.pth')
    model = spread(build(f'{repository}/{job["config"]}', job['options'], job['toolbox'], job['mmcv']), torch)
    torch.save({'state_dict': model.state_dict()}, f'{folder}/model.pth')
    with torch.no_grad():
        maps = list(model.backbone(job['x']))
        torch.save(dict(maps=maps, result=compute(model, job['x'], job['toolbox'])), f'{folder}/computed.pth')


if __name__ == '__main__':
    main(*sys.argv[1:])
