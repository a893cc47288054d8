"""Configs, runners and predictors as jobs make them."""

from swin_backbone.options import Options
from swin_backbone.workbench import job
from swin_backbone.workbench.resolve import resolve_training
from swin_backbone.workbench.runner import build

# Options for a small RetinaNet of mmdet
SMALL_RETINANET = {
    **{f'model.{part}': 16 for part in ('neck.out_channels', 'bbox_head.in_channels', 'bbox_head.feat_channels')},
    'model.bbox_head.stacked_convs': 1,
}


def build_runner(cfg, **options):
    return build.build_runner(cfg, Options(**options))


def load_config(config, work_dir=None, options=None, launcher='none', backbone=None, **more):
    """Return the config of a training. `more`: see `Options`."""
    given = dict(work_dir=work_dir, cfg_options=options or {}, launcher=launcher, backbone=backbone, **more)
    given = {name: value for name, value in given.items() if value is not None}
    return training_of(job.Job(str(config), Options(**given))).cfg


def training_of(made):
    """Return the resolved training of a job."""
    return resolve_training(made.cfg, made.options, made.data)


def open_predictor(cfg, checkpoint, device='cpu', **more):
    return job.open_predictor(job.Job(cfg, Options(device=device, **more)), checkpoint)
