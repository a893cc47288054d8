"""Losses of a short training, for `benchmarks.parity`: python -m benchmarks.one_training SPEC.json LOSSES.json

The training has a separate process, because the import of torch chooses the instructions.
"""

import ast
import inspect
import json
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Optional

import torch
from mmengine.config import Config, ConfigDict
from mmengine.hooks import Hook
from mmengine.runner import Runner

from swin_backbone.archs import ARCHS
from swin_backbone.kernels.foreign.accelerate import restore_swin
from swin_backbone.openmmlab.config_parts import iter_parts, type_name
from swin_backbone.openmmlab.layers.extension import LAYER_FILES
from swin_backbone.openmmlab.mixed_precision import mixed_precision
from swin_backbone.options import Options
from swin_backbone.whole_files import write_whole, write_whole_by
from swin_backbone.workbench.job import Job
from swin_backbone.workbench.runner import build

OPTIMIZERS: dict[str, dict[str, Any]] = {
    'sgd': dict(type='SGD', lr=0.01, momentum=0.9),
    'adamw': dict(type='AdamW', lr=1e-3, weight_decay=0.05),
}


@dataclass(frozen=True)
class Spec:
    """Settings of a training.

    Args:
        start: file of the first weights; with 0 iterations, weights are drawn by the seed and written to the file.
        swin: 'ours' or 'theirs', the toolbox's Swin.
        backend: backend of our Swin.
        bfloat16: compute like `--amp` on a CPU.
        ulp: move all first weights to a neighbouring number, up or down by chance.
        avx2: AVX2 instructions; environment variables of the process select them.
        data, annotations: the user's data, in place of the config's data.
    """

    config: str
    start: str
    work_dir: str
    swin: str = 'ours'
    backend: str = 'auto'
    optimizer: str = 'sgd'
    iterations: int = 10
    bfloat16: bool = False
    seed: int = 0
    ulp: bool = False
    threads: int = 1
    avx2: bool = False
    data: Optional[str] = None
    annotations: Optional[str] = None
    cfg_options: str = '{}'  # a literal of Python, which has tuples


def run_in_process(spec: Spec) -> list[float]:
    """Train, and return the total losses of all iterations.

    Raises:
        ValueError: if the config's backbone is no Swin V1, or the weights do not fit.
    """
    torch.set_num_threads(spec.threads)
    cfg = _config(spec)
    runner = build.build_runner(cfg, Options())
    model = runner.model
    if spec.swin == 'theirs':
        restore_swin(model)  # the layers behind stay as ours: rounding of them is no difference of the Swins
    if not spec.iterations:
        model.init_weights()
        write_whole_by(Path(spec.start), lambda part: torch.save(model.state_dict(), part))
        return []
    weights = torch.load(spec.start, weights_only=True)
    _load(model, _moved(weights, spec.seed) if spec.ulp else weights)
    model.init_weights = lambda: None  # training calls init_weights again
    losses = LossesHook()
    runner.register_hook(losses)
    with mixed_precision(model) if spec.bfloat16 else nullcontext():
        build.run_loop(runner, 'train')
    return losses.totals


class LossesHook(Hook):
    """Collects the total losses of all iterations."""

    def __init__(self) -> None:
        self.totals: list[float] = []

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Optional[dict[str, Any]] = None
    ) -> None:
        assert outputs is not None
        self.totals.append(outputs['loss'].item())


def _config(spec: Spec) -> Config:
    options = Options(
        work_dir=spec.work_dir,
        cfg_options=ast.literal_eval(spec.cfg_options),
        data=spec.data,
        annotations=spec.annotations,
    )
    cfg = Job(spec.config, options).cfg
    theirs = as_theirs(cfg.model.backbone, cfg.get('default_scope', 'mmdet'))
    if spec.swin == 'theirs':
        cfg.model.backbone = theirs
        restore_layers(cfg.model, cfg.get('default_scope', 'mmdet'))
    else:
        cfg.model.backbone = as_ours(theirs, spec.backend)
    cfg.train_cfg = dict(type='IterBasedTrainLoop', max_iters=spec.iterations, val_interval=spec.iterations + 1)
    cfg.train_dataloader.sampler = dict(type='InfiniteSampler', shuffle=True, seed=spec.seed)
    cfg.train_dataloader.pop('batch_sampler', None)
    cfg.train_dataloader.update(num_workers=0, persistent_workers=False)
    for key in ('val_cfg', 'val_dataloader', 'val_evaluator', 'test_cfg', 'test_dataloader', 'test_evaluator'):
        cfg[key] = None
    cfg.param_scheduler = [dict(type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=50)]
    cfg.optim_wrapper = ConfigDict(
        type='OptimWrapper', optimizer=dict(OPTIMIZERS[spec.optimizer]), clip_grad=dict(max_norm=5.0)
    )
    cfg.custom_hooks = []
    cfg.default_hooks = ConfigDict(
        logger=dict(type='LoggerHook', interval=10, log_metric_by_epoch=False),
        checkpoint=dict(type='CheckpointHook', by_epoch=False, interval=-1, save_last=False),
    )
    cfg.log_processor = ConfigDict(type='LogProcessor', by_epoch=False)
    cfg.load_from, cfg.resume = None, False
    cfg.randomness = dict(seed=spec.seed)
    return cfg


def as_theirs(backbone: ConfigDict, scope: str) -> ConfigDict:
    """Return the toolbox's Swin with the arguments of `backbone`, a SwinBackbone or a SwinTransformer.

    Raises:
        ValueError: if `backbone` is of a different type.
    """
    kind = backbone.type.rsplit('.')[-1]
    if kind not in ('SwinBackbone', 'SwinTransformer'):
        raise ValueError(
            f"the config's model.backbone must be a SwinBackbone or SwinTransformer, got {backbone.type!r}"
        )
    taken = inspect.signature(import_module(f'{scope}.models').SwinTransformer).parameters
    given = dict(backbone)
    arch = given.pop('arch', 'tiny' if kind == 'SwinBackbone' else None)
    if arch:
        given = dict(zip(('embed_dims', 'depths', 'num_heads'), ARCHS[arch])) | given
    arguments = {key: value for key, value in given.items() if key in taken}
    return ConfigDict(arguments, type=f'{scope}.SwinTransformer', init_cfg=None)


def as_ours(theirs: ConfigDict, backend: str) -> ConfigDict:
    """Return a SwinBackbone with the arguments of the toolbox's Swin."""
    return ConfigDict(theirs, type='SwinBackbone', backend=backend)


def restore_layers(node: Any, scope: str) -> None:
    """Replace this package's layers by the toolbox's layers in the config of a model, in place."""
    for _, part in iter_parts(node, 'model'):
        if str(part['type']).startswith('swin_backbone.') and (scope, type_name(part)) in LAYER_FILES:
            part['type'] = f'{scope}.{type_name(part)}'


def _load(model: torch.nn.Module, weights: dict[str, torch.Tensor]) -> None:
    """Load all parameters and running statistics. Index tables of the toolboxes' Swin are no weights."""
    missing, unexpected = model.load_state_dict(weights, strict=False)
    missing = [name for name in missing if not name.endswith('relative_position_index')]
    if missing or unexpected:
        raise ValueError(f'the two Swins have other weights: {[*missing, *unexpected][:5]}')


def _moved(weights: dict[str, torch.Tensor], seed: int) -> dict[str, torch.Tensor]:
    """Return the weights with all numbers moved to a neighbour of the type."""
    generator = torch.Generator().manual_seed(seed)

    def moved(x: torch.Tensor) -> torch.Tensor:
        if not x.is_floating_point():
            return x
        up = torch.rand(x.shape, generator=generator) < 0.5
        return x.nextafter(torch.where(up, torch.inf, -torch.inf).to(x))

    return {name: moved(x) for name, x in weights.items()}


def main() -> None:
    spec_file, losses_file = map(Path, sys.argv[1:])
    losses = run_in_process(Spec(**json.loads(spec_file.read_text())))
    write_whole(losses_file, json.dumps(losses).encode())


if __name__ == '__main__':
    main()
