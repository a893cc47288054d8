"""Trainings of one second in forked processes, for tests that kill or limit a process.

A fork has all modules and starts at once. Loggers and message hubs of a fork are new.
"""

import multiprocessing.process
import os
import random
import resource
import signal
import socket
import sys
import time
import traceback

import matplotlib.backends.backend_agg
import matplotlib.figure  # noqa: F401  mmengine's visualizer imports the module; the import runs once for all forks
import numpy as np
import torch
import torch._dynamo  # an optimizer imports the module; the import takes as long as a training
from mmengine.config import Config
from mmengine.evaluator import BaseMetric
from mmengine.hooks import Hook
from mmengine.logging import MMLogger
from mmengine.model import BaseModel
from mmengine.optim import AmpOptimWrapper, OptimWrapper
from mmengine.registry import DATASETS, HOOKS, METRICS, MODELS, OPTIM_WRAPPERS
from mmengine.structures import BaseDataElement
from torch import nn

from helpers.openmmlab.jobs import build_runner
from swin_backbone import SwinBackbone
from swin_backbone.openmmlab.config_parts import walk
from swin_backbone.openmmlab.errors import ConfigError, TrainingStopped
from swin_backbone.workbench.runner.hooks import signals
from swin_backbone.workbench.runner.hooks.signals import StoppedBySignal

IMAGES = 16


@DATASETS.register_module(force=True)
class NoisyImages(torch.utils.data.Dataset):
    """Pictures with new random numbers at every access, from the generators of torch, numpy and Python."""

    def __init__(self, bad=(), broken=(), images=IMAGES):
        self.bad, self.broken = bad, broken
        self.images = images

    def __len__(self):
        return self.images

    def __getitem__(self, index):
        if index in self.broken:
            raise OSError(f'picture_{index}.png is truncated')
        picture = torch.full((3, 32, 32), index / IMAGES) + torch.rand(3, 32, 32)
        picture = picture * np.random.rand() + random.random()
        if index in self.bad:
            picture = picture * float('nan')
        return dict(inputs=picture, data_samples=BaseDataElement(metainfo=dict(img_path=f'picture_{index}.png')))


@MODELS.register_module(force=True)
class Toy(BaseModel):
    """A Swin with drop path, batch norm and noise in the loss.

    Args:
        spoil: for an iteration, counted from 0: 'loss_a', 'loss_b' or 'gradient', the number to make NaN.
        rank_to_spoil: rank of the process with the NaN.
    """

    def __init__(self, spoil=None, rank_to_spoil=0):
        super().__init__()
        arch = dict(embed_dims=8, depths=(1, 1, 2, 1), num_heads=(1, 1, 1, 1))
        self.backbone = SwinBackbone(**arch, drop_path_rate=0.5, window_size=4, out_indices=(3,))
        self.norm = nn.BatchNorm2d(64)
        self.head = nn.Linear(64, 1)
        self.spoil = {int(key): value for key, value in (spoil or {}).items()}
        self.rank_to_spoil = rank_to_spoil
        self.steps = 0

    def forward(self, inputs, data_samples=None, mode='tensor'):
        y = self.head(self.norm(self.backbone(torch.stack(inputs))[-1]).mean((2, 3)))
        if mode != 'loss':
            return [BaseDataElement() for _ in inputs]
        losses = dict(
            loss_a=(y - torch.rand_like(y) - random.random()).square().mean(), loss_b=y.abs().mean() * np.random.rand()
        )
        spoilt = self.spoil.get(self.steps) if int(os.environ.get('RANK', 0)) == self.rank_to_spoil else None
        self.steps += 1
        if spoilt in losses:
            losses[spoilt] = losses[spoilt] * float('nan')
        elif spoilt == 'gradient':
            losses['loss_a'] = losses['loss_a'] + torch.sqrt(self.head.bias.sum() * 0)  # 0 with a NaN derivative
        return losses


@OPTIM_WRAPPERS.register_module(force=True)
class CpuAmp(AmpOptimWrapper):
    """mmengine's AmpOptimWrapper with a CPU's scaler. mmengine's own constructor requires an accelerator."""

    def __init__(self, init_scale=1024.0, enabled=True, **kwargs):
        OptimWrapper.__init__(self, **kwargs)
        self._scale_update_param = None
        self.loss_scaler = torch.amp.GradScaler('cpu', init_scale=init_scale, growth_interval=3, enabled=enabled)
        self.cast_dtype = torch.bfloat16


@HOOKS.register_module(force=True)
class SendSignal(Hook):
    """Send a signal after iterations, counted from 1: to this process or its group, on all ranks or one rank.

    Args:
        delay: seconds before the signal.
    """

    def __init__(self, number, after, stage='after_train_iter', rank=None, group=False, delay=0):
        self.number, self.after, self.stage, self.rank, self.group = number, after, stage, rank, group
        self.delay = delay

    def send(self, runner):
        if self.rank in (None, runner.rank):
            time.sleep(self.delay)
            (os.killpg if self.group else os.kill)(os.getpid(), self.number)

    def after_train_iter(self, runner, *args, **kwargs):
        if self.stage == 'after_train_iter' and runner.iter + 1 in self.after:
            self.send(runner)

    def after_val_iter(self, runner, *args, **kwargs):
        if self.stage == 'after_val_iter' and runner.iter in self.after:
            self.send(runner)


@HOOKS.register_module(force=True)
class LimitFiles(Hook):
    """Limit the size of files after an epoch: logs fit, checkpoints do not."""

    priority = 'LOWEST'

    def __init__(self, after):
        self.after = after

    def after_train_epoch(self, runner):
        if runner.epoch + 1 == self.after:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))


@METRICS.register_module(force=True)
class Scores(BaseMetric):
    """Return given scores, a score for every validation."""

    def __init__(self, scores):
        super().__init__()
        self.scores = list(scores)

    def process(self, data_batch, data_samples):
        self.results.append(0)

    def compute_metrics(self, results):
        return dict(score=self.scores.pop(0))


def config(work_dir, *, epochs=None, iterations=None, workers=0, hooks=(), interval=1, val=None, **more):
    """Return the config of a training of `epochs` of 8 steps, or of `iterations`.

    Keys of `more` are config keys with double underscores in place of dots.
    """
    loader = dict(
        batch_size=2, num_workers=workers, persistent_workers=workers > 0, dataset=dict(type='NoisyImages'),
        sampler=dict(type='DefaultSampler' if epochs else 'InfiniteSampler', shuffle=True),
    )  # fmt: skip
    by_epoch = epochs is not None
    cfg = Config(
        dict(
            model=dict(type='Toy'),
            work_dir=str(work_dir),
            train_dataloader=loader,
            train_cfg=dict(by_epoch=by_epoch, **(dict(max_epochs=epochs) if epochs else dict(max_iters=iterations))),
            optim_wrapper=dict(optimizer=dict(type='AdamW', lr=0.01), clip_grad=dict(max_norm=1.0)),
            param_scheduler=[dict(type='LinearLR', start_factor=0.1, by_epoch=False, end=20)],
            default_hooks=dict(
                checkpoint=dict(type='CheckpointHook', by_epoch=by_epoch, interval=interval, max_keep_ckpts=1),
                finite=dict(type='NonFiniteGuardHook', max_in_a_row=3),
                logger=dict(type='LoggerHook', interval=1),
            ),
            custom_hooks=list(hooks),
            randomness=more.pop('randomness', dict(seed=5)),
            launcher='none',
            experiment_name='toy',
            **{key: more.pop(key) for key in list(more) if key in ('resume', 'load_from')},
        )
    )  # fmt: skip
    if val:
        cfg.val_dataloader = dict(loader, sampler=dict(type='DefaultSampler', shuffle=False))
        cfg.val_cfg = dict(type='ValLoop')
        cfg.val_evaluator = more.pop('val_evaluator', [])
        cfg.train_cfg.val_interval = val
    cfg.merge_from_dict({key.replace('__', '.'): value for key, value in more.items()})
    return cfg


def train(cfg):
    runner = build_runner(cfg)
    runner.train()
    return runner


def train_and_say(cfg):
    """Train, and exit with the message of a stop or of a wrong config, like tools/train.py."""
    try:
        train(cfg)
    except (ConfigError, TrainingStopped) as error:
        sys.exit(str(error))


def start(function, *args, log=os.devnull, **environment):
    """Call `function` in a forked process, and return the process id. An error gives exit code 1 and a traceback."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        os.setpgid(0, 0)
        for number in signals.ACTIONS:  # tests in the background of a script inherit ignored signals
            signal.signal(number, signal.SIG_DFL)
        with open(log, 'a', buffering=1) as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            sys.stdout = sys.stderr = file
            MMLogger._instance_dict.clear()  # loggers of the parent print to the captured stdout of a test
            multiprocessing.process._children.clear()  # an exit ends and joins children: these are the parent's
            os.environ.update({key: str(value) for key, value in environment.items()})
            torch.set_num_threads(1)  # a fork has no OpenMP threads
            try:
                function(*args)
                code = 0
            except StoppedBySignal as stop:
                code = stop.status
            except SystemExit as stop:
                code = stop.code if isinstance(stop.code, int) else print(stop.code) or 1
            except BaseException:
                traceback.print_exc()
    finally:
        os._exit(code)


def wait(process):
    """Return the exit code of a process; -n after signal n."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def run(cfg, **options):
    """Train to the end in a forked process, and return the exit code."""
    return wait(start(train, cfg, **options))


def run_ranks(cfg, ranks=2, log=None):
    """Train in several processes, and return the exit codes."""
    cfg.launcher = 'pytorch'
    return call_in_ranks(train, cfg, ranks=ranks, log=log)


def call_in_ranks(function, *args, ranks=2, log=None):
    """Call `function` in the processes of a distributed run, and return the exit codes."""
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        port = free.getsockname()[1]
    common = dict(WORLD_SIZE=ranks, MASTER_ADDR='127.0.0.1', MASTER_PORT=port)
    logs = [f'{log}{rank}' if log else os.devnull for rank in range(ranks)]
    started = [start(function, *args, log=logs[rank], RANK=rank, LOCAL_RANK=rank, **common) for rank in range(ranks)]
    return [wait(process) for process in started]


def tensors_of(checkpoint):
    """Return all tensors of a checkpoint's weights, optimizer and moving average, by path."""
    loaded = torch.load(checkpoint, weights_only=False)
    parts = {key: loaded[key] for key in ('state_dict', 'optimizer', 'ema_state_dict') if key in loaded}
    return {path: value for path, value in walk(parts) if isinstance(value, torch.Tensor)}


def differing(first, second):
    """Return the paths of tensors with different bits in two checkpoints."""
    first, second = tensors_of(first), tensors_of(second)
    assert first.keys() == second.keys()
    assert len(first) > 100
    return [path for path, value in first.items() if not torch.equal(value, second[path])]
