"""Training on several machines: their losses, a lost process or machine, and jobs of Slurm.

The machines are launchers on the loopback, over gloo.
"""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from statistics import mean

import pytest
from helpers import ROOT, run_python

ENVIRONMENT = {**os.environ, 'OMP_NUM_THREADS': '1', 'PYTHON': sys.executable, 'PYTHONPATH': str(ROOT)}
ENVIRONMENT['TORCH_DISABLE_SHARE_RDZV_TCP_STORE'] = '1'  # a shared store has addresses of lost processes (torch 2.13)
LIMIT_S = 300


def free_port():
    with socket.create_server(('127.0.0.1', 0)) as server:
        return server.getsockname()[1]


def start(command, log, **environment):
    """Start a machine: a launcher with its ranks, in a new process group."""
    with open(log, 'a') as file:
        return subprocess.Popen(
            [str(word) for word in command], cwd=ROOT, env={**ENVIRONMENT, **environment}, stdout=file, stderr=file,
            start_new_session=True,
        )  # fmt: skip


def wait_for(condition, *processes):
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        assert all(process.poll() is None for process in processes)
        time.sleep(0.05)


def is_open(port):
    with socket.socket() as client:
        return client.connect_ex(('127.0.0.1', port)) == 0


def end(machine):
    """Kill a machine and its ranks, which run in separate sessions."""
    for process in [*children_of(machine), machine.pid]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    machine.wait()


def children_of(machine):
    path = Path(f'/proc/{machine.pid}/task/{machine.pid}/children')
    return [int(child) for child in path.read_text().split()] if path.exists() else []


@pytest.fixture
def machines():
    started = []
    yield started
    for machine in started:
        end(machine)


LOSSES = """
import json
from pathlib import Path

import torch
from mmengine.dist import all_reduce
from mmengine.hooks import Hook
from mmengine.registry import HOOKS


@HOOKS.register_module(name='GlobalLoss')
class GlobalLoss(Hook):
    '''The loss of the global batch, which a rank's log has a part of.'''

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        loss = outputs['loss'].detach().clone()
        all_reduce(loss, op='mean')
        if runner.rank == 0:
            with open(Path(runner.work_dir, 'losses.jsonl'), 'a') as file:
                file.write(json.dumps([runner.iter, loss.item(), runner.world_size]) + chr(10))
"""

# Nothing random in the model or the pictures, and no norm over the batch: SyncBN needs CUDA, and BN sees a rank's part
CONFIG = """
_base_ = {base!r}
custom_imports = dict(imports=['swin_backbone', 'global_loss'])
custom_hooks = [dict(type='GlobalLoss')]
norm_cfg = dict(type='GN', num_groups=4, requires_grad=True)
heads = dict(norm_cfg=norm_cfg, dropout_ratio=0.0)
model = dict(
    data_preprocessor=dict(size=(64, 64)),
    backbone=dict(depths=[1, 1, 1, 1]), decode_head=heads, auxiliary_head=heads)
pipeline = [dict(type='LoadImageFromFile'), dict(type='LoadAnnotations'), dict(type='PackSegInputs')]
loader = dict(num_workers=0, persistent_workers=False)
train_dataloader = dict(loader, dataset=dict(data_root={data!r}, pipeline=pipeline))
val_dataloader = dict(loader, dataset=dict(data_root={data!r}))
test_dataloader = val_dataloader
train_cfg = dict(val_interval=1000)
default_hooks = dict(checkpoint=dict(interval=5, max_keep_ckpts=2))
"""


@pytest.fixture(scope='module')
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp('machines')
    run_python('tools/make_shapes_dataset.py', folder / 'shapes', '--train', 16, '--val', 2, '--shape', 64)
    (folder / 'global_loss.py').write_text(LOSSES)
    base = str(ROOT / 'configs' / 'demo' / 'swin-nano_upernet_shapes.py')
    (folder / 'config.py').write_text(CONFIG.format(base=base, data=str(folder / 'shapes')))
    ENVIRONMENT['PYTHONPATH'] = f'{ROOT}{os.pathsep}{folder}'
    yield folder / 'config.py'
    ENVIRONMENT['PYTHONPATH'] = str(ROOT)


def training(config, work_dir, batch_size, iterations, *options):
    settings = [f'train_dataloader.batch_size={batch_size}', f'train_cfg.max_iters={iterations}']
    return ['bash', 'tools/dist_train.sh', config, '1', '--work-dir', work_dir, *options, '--cfg-options', *settings]


def losses(work_dir):
    """Return loss and world size by iteration; the last entry counts after a restart."""
    rows = map(json.loads, (work_dir / 'losses.jsonl').read_text().splitlines())
    return {iteration: (loss, world) for iteration, loss, world in rows}


def restored(log):
    return re.findall(r'resumed epoch: \d+, iter: (\d+)', log.read_text())


def elastic(config, work_dir, batch_size, iterations, port):
    """Return the command of one of two machines; a single machine starts after five seconds."""
    # A lost machine is noticed after three beats. The last call limits the wait for it.
    conf = '--rdzv-conf=keep_alive_interval=1,keep_alive_max_attempt=3,last_call_timeout=5'
    meeting = ['--rdzv-backend=c10d', f'--rdzv-endpoint=127.0.0.1:{port}', '--rdzv-id=swin', conf]
    launcher = [sys.executable, '-m', 'torch.distributed.run', '--nnodes=1:2', '--max-restarts=2', *meeting]
    _, _, *words = training(config, work_dir, batch_size, iterations, '--resume', '--launcher', 'pytorch')
    words.remove('1')
    return [*launcher, 'tools/train.py', *words]


def ranks_below(machine):
    """Return the trainings of a launcher."""
    return [child for child in children_of(machine) if b'train.py' in Path(f'/proc/{child}/cmdline').read_bytes()]


@pytest.mark.slow
@pytest.mark.train
def test_a_lost_rank_and_a_lost_machine(config, machines, tmp_path, record_fault):
    """Two machines have the losses of one at an equal batch. The remaining machine has half the batch."""
    one = start(training(config, tmp_path / 'one', 4, 30), tmp_path / 'one.log', PORT=str(free_port()))
    assert one.wait(LIMIT_S) == 0, (tmp_path / 'one.log').read_text()[-3000:]
    port = free_port()
    command = elastic(config, tmp_path / 'work', 2, 60, port)
    machines.append(start(command, tmp_path / '0.log', NODE_RANK='0'))
    wait_for(lambda: is_open(port), *machines)  # so the first machine has the store
    machines.append(start(command, tmp_path / '1.log', NODE_RANK='1'))
    wait_for((tmp_path / 'work' / 'iter_15.pth').exists, *machines)
    (rank,) = ranks_below(machines[1])
    os.kill(rank, signal.SIGKILL)
    wait_for((tmp_path / 'work' / 'iter_35.pth').exists, *machines)
    end(machines[1])  # the launcher and its rank
    assert machines[0].wait(LIMIT_S) == 0, (tmp_path / '0.log').read_text()[-3000:]
    of_one, steps = losses(tmp_path / 'one'), losses(tmp_path / 'work')
    assert list(steps) == list(range(60))
    worlds = [world for _, world in steps.values()]
    assert worlds == sorted(worlds, reverse=True)
    assert set(worlds[:30]) == {2}
    assert set(worlds) == {1, 2}
    for iteration, (loss, _) in of_one.items():
        assert steps[iteration][0] == pytest.approx(loss, abs=1e-5)
    resumed = list(map(int, restored(tmp_path / '0.log')))
    assert 15 <= resumed[0] <= 35 <= resumed[-1]
    assert '1 processes instead of 2' in (tmp_path / '0.log').read_text()
    curve = [loss for loss, _ in steps.values()]
    assert mean(curve[-10:]) < mean(curve[:10])
    record_fault('lost_ranks', 2)


# Fake programs of Slurm: srun runs a command once for each task
SRUN = """#!/usr/bin/env bash
while [[ $1 == --* ]]; do echo "$1" >> "$FOLDER/srun"; shift; done
for task in 0 1; do
    SLURM_PROCID=$task SLURM_NTASKS=2 SLURM_LOCALID=0 SLURM_NODEID=$task SLURM_NODELIST='node[0-1]' "$@" &
done
status=0
for job in $(jobs -p); do wait "$job" || status=$?; done
exit $status
"""
SCONTROL = """#!/usr/bin/env bash
if [ "$2" = hostnames ]; then echo 127.0.0.1; echo 127.0.0.1; else echo "$@" >> "$FOLDER/scontrol"; fi
"""


@pytest.fixture
def slurm(tmp_path):
    for name, text in (('srun', SRUN), ('scontrol', SCONTROL)):
        (tmp_path / 'bin').mkdir(exist_ok=True)
        (tmp_path / 'bin' / name).write_text(text)
        (tmp_path / 'bin' / name).chmod(0o755)
    variables = dict(PATH=f'{tmp_path / "bin"}{os.pathsep}{os.environ["PATH"]}', FOLDER=str(tmp_path))
    return dict(variables, SLURM_JOB_ID=str(os.getpid()), SLURM_NNODES='2', SLURM_JOB_NODELIST='node[0-1]')


@pytest.mark.slow
@pytest.mark.train
@pytest.mark.parametrize('tool', ['slurm_train.sh', 'train.sbatch'])
def test_slurm_starts_all_ranks(config, slurm, machines, tmp_path, tool):
    words = ['debug', 'name', config, tmp_path / 'work'] if tool == 'slurm_train.sh' else [config, 1, tmp_path / 'work']
    command = ['bash', f'tools/{tool}', *words, '--cfg-options', 'train_cfg.max_iters=3']
    environment = dict(slurm, GPUS='2', GPUS_PER_NODE='0', MASTER_PORT=str(free_port()), PORT=str(free_port()))
    machines.append(start(command, tmp_path / 'log', **environment))
    assert machines[0].wait(LIMIT_S) == 0, (tmp_path / 'log').read_text()[-3000:]
    assert {world for _, world in losses(tmp_path / 'work').values()} == {2}


@pytest.mark.parametrize('stopped', [True, False])
def test_a_job_that_slurm_ends_goes_back_into_the_queue(slurm, machines, tmp_path, stopped, record_fault):
    work = 'sleep 60 &' if stopped else ':'
    (tmp_path / 'python').write_text(f'#!/usr/bin/env bash\ntouch {tmp_path}/up\n{work}\nwait\n')
    (tmp_path / 'python').chmod(0o755)
    command = ['bash', 'tools/train.sbatch', 'config.py', '1', tmp_path / 'work']
    machines.append(start(command, tmp_path / 'log', **{**slurm, 'PYTHON': str(tmp_path / 'python')}))
    wait_for((tmp_path / 'up').exists)
    if stopped:
        machines[0].send_signal(signal.SIGTERM)
    machines[0].wait(LIMIT_S)
    queue = tmp_path / 'scontrol'
    assert (queue.read_text() if queue.exists() else '') == f'requeue {slurm["SLURM_JOB_ID"]}\n' * stopped
    record_fault('signals')
