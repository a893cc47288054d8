"""Training on several machines: what starts them, what they compute, and what becomes of them when one is lost.

The machines are launchers on this one, which meet on the loopback and compute over gloo.
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
from helpers import ROOT
from helpers.openmmlab.toy_training import differing

ENVIRONMENT = {**os.environ, 'OMP_NUM_THREADS': '1', 'PYTHON': sys.executable, 'PYTHONPATH': str(ROOT)}
LIMIT_S = 300
END_S = 30  # in which all ranks have ended after one was lost


def free_port():
    with socket.create_server(('127.0.0.1', 0)) as server:
        return server.getsockname()[1]


def start(command, log, **environment):
    """A machine: a launcher in a process group of its own, with its ranks."""
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


def end(machine):
    """A machine at once, with its ranks, which are in sessions of their own."""
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


# What stands for tools/train.py where only the launcher is looked at: it says who it is, and waits to be ended.
RANK = """
import os, sys, time
from pathlib import Path
folder = Path(sys.argv[1])
number = os.environ['RANK'], os.environ['WORLD_SIZE'], os.environ['TORCHELASTIC_RESTART_COUNT']
path = folder / '-'.join(number)
path.with_suffix('.writing').write_text(str(os.getpid()))
path.with_suffix('.writing').rename(path)
end = time.monotonic() + 300
while not (folder / 'end').exists() and time.monotonic() < end:
    time.sleep(0.05)
"""


@pytest.fixture
def ranks(tmp_path):
    (tmp_path / 'rank.py').write_text(RANK)
    (tmp_path / 'ranks').mkdir()
    return tmp_path / 'ranks'


def test_the_ranks_are_those_of_the_machines_and_one_that_is_killed_ends_all(ranks, machines, tmp_path, record_fault):
    """Static, as the toolboxes' users start it: NNODES, NODE_RANK, MASTER_ADDR, PORT."""
    variables = dict(NNODES='2', MASTER_ADDR='127.0.0.1', PORT=str(free_port()))
    command = [sys.executable, 'tools/launch.py', '2', tmp_path / 'rank.py', ranks]
    for node in (1, 0):
        machines.append(start(command, tmp_path / f'{node}.log', NODE_RANK=str(node), **variables))
    wait_for(lambda: len(list(ranks.glob('?-?-?'))) == 4, *machines)
    assert {path.name for path in ranks.glob('?-?-?')} == {f'{rank}-4-0' for rank in range(4)}
    process = int((ranks / '3-4-0').read_text())
    os.kill(process, signal.SIGKILL)
    assert machines[0].wait(END_S) == 1
    (line,) = (tmp_path / '1.log').read_text().splitlines()
    assert line == (
        f'rank 3 (process {process} on {socket.gethostname()}) was ended by SIGKILL, and the others with it; '
        '--resume goes on from the last checkpoint'
    )
    assert not Path(f'/proc/{(ranks / "2-4-0").read_text()}').exists()
    record_fault('lost_ranks')


def test_a_rank_that_is_killed_starts_again_with_all_others(ranks, machines, tmp_path, record_fault):
    """c10d, with what torchrun takes; the ranks of both machines start again."""
    port = free_port()
    for node in range(2):
        options = ['--nnodes', 2, '--node-rank', node, '--rdzv-endpoint', f'127.0.0.1:{port}', '--max-restarts=1']
        command = [sys.executable, 'tools/launch.py', '1', tmp_path / 'rank.py', ranks, *options, '--resume']
        machines.append(start(command, tmp_path / f'{node}.log'))
    wait_for(lambda: len(list(ranks.glob('?-2-0'))) == 2, *machines)
    for first in ranks.glob('?-2-0'):  # that of the other machine ends because its peer is gone, which gloo tells it
        os.kill(int(first.read_text()), signal.SIGKILL)
    wait_for(lambda: len(list(ranks.glob('?-2-1'))) == 2, *machines)
    (ranks / 'end').touch()
    assert [machine.wait(LIMIT_S) for machine in machines] == [0, 0]
    assert [(tmp_path / f'{node}.log').read_text() for node in range(2)] == ['', '']
    record_fault('lost_ranks', 2)


@pytest.mark.parametrize(
    ('options', 'variables', 'said'),
    [
        (['--nnodes=2:1'], {}, "NNODES takes a number of machines, or MIN:MAX, got '2:1'"),
        ([], dict(NNODES='two'), "NNODES takes a number of machines, or MIN:MAX, got 'two'"),
        ([], dict(NNODES='2', NODE_RANK='2', MASTER_ADDR='a'), "NODE_RANK takes a number from 0 to 1, got '2'"),
        ([], dict(NNODES='2'), "NNODES=2 takes MASTER_ADDR or --master-addr, the first machine's address"),
        (['--master_port', '70000'], {}, "PORT takes a number from 1 to 65535, got '70000'"),
        (['--max-restarts=-1', '--resume'], {}, "--max-restarts takes a number from 0 to 1000, got '-1'"),
        (['--max-restarts=3'], {}, '--max-restarts and MIN:MAX machines take --resume without a checkpoint: '),
        (['--max-restarts=3', '--resume', 'a.pth'], {}, '--max-restarts and MIN:MAX machines take --resume without '),
        (['--resume', '--nnodes=1:2', '--rdzv-backend=static'], {}, 'take --rdzv-backend c10d, got static'),
        (['--rdzv-backend=etcd'], {}, "--rdzv-backend takes 'c10d' or 'static', got 'etcd'"),
    ],
)
def test_what_torchrun_would_fail_at_or_wait_for_is_a_sentence(options, variables, said, record_fault):
    environment = {key: value for key, value in ENVIRONMENT.items() if key not in ('NNODES', 'NODE_RANK', 'PORT')}
    result = subprocess.run(
        ['bash', 'tools/dist_train.sh', 'config.py', '1', *options], cwd=ROOT, env={**environment, **variables},
        capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert result.returncode == 2
    assert result.stderr.startswith('tools/dist_train.sh: ')
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1
    record_fault('bad_commands')


def test_a_machine_that_is_not_there_is_a_sentence(tmp_path, record_fault):
    command = [sys.executable, 'tools/launch.py', '1', tmp_path / 'rank.py', '--nnodes=2', '--node-rank=1']
    options = [f'--rdzv-endpoint=127.0.0.1:{free_port()}', '--rdzv-conf=read_timeout=2']
    result = subprocess.run(
        [str(word) for word in (*command, *options)], cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True,
        timeout=LIMIT_S,
    )  # fmt: skip
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert 'the machines cannot meet, or no longer, at 127.0.0.1:' in line
    record_fault('lost_ranks')


# The rest trains a real config with the tools, and needs the toolboxes.

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
    pytest.importorskip('mmseg', reason='mmseg is not installed')
    folder = tmp_path_factory.mktemp('machines')
    command = [sys.executable, 'tools/make_shapes_dataset.py', folder / 'shapes', '--train', 16, '--val', 2]
    subprocess.run([*map(str, command), '--size', '64'], cwd=ROOT, env=ENVIRONMENT, check=True, capture_output=True)
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
    """By iteration: the last of those that were computed again after a restart."""
    rows = map(json.loads, (work_dir / 'losses.jsonl').read_text().splitlines())
    return {iteration: (loss, world) for iteration, loss, world in rows}


def restored(log):
    return re.findall(r'resumed epoch: \d+, iter: (\d+)', log.read_text())


@pytest.mark.slow
@pytest.mark.train
def test_two_machines_compute_what_one_does_at_the_same_global_batch(config, machines, tmp_path):
    one = start(training(config, tmp_path / 'one', 4, 30), tmp_path / 'one.log', PORT=str(free_port()))
    assert one.wait(LIMIT_S) == 0, (tmp_path / 'one.log').read_text()[-3000:]
    variables = dict(NNODES='2', MASTER_ADDR='127.0.0.1', PORT=str(free_port()))
    for node in range(2):
        log = tmp_path / f'{node}.log'
        machines.append(start(training(config, tmp_path / 'two', 2, 30), log, NODE_RANK=str(node), **variables))
    assert [machine.wait(LIMIT_S) for machine in machines] == [0, 0], (tmp_path / '0.log').read_text()[-3000:]
    of_one, of_two = losses(tmp_path / 'one'), losses(tmp_path / 'two')
    assert list(of_one) == list(of_two) == list(range(30))
    assert {world for _, world in of_two.values()} == {2}
    differences = [abs(of_one[i][0] - of_two[i][0]) for i in range(30)]
    assert max(differences) < 1e-5
    assert of_one[29][0] < 0.8 * of_one[0][0]


def elastic(config, work_dir, batch_size, iterations, port):
    # A machine that is lost is noticed after three beats, and waited for no longer than the last call
    conf = '--rdzv-conf=keep_alive_interval=1,keep_alive_max_attempt=3,last_call_timeout=1'
    options = ['--resume', '--max-restarts=2', '--nnodes=1:2', f'--rdzv-endpoint=127.0.0.1:{port}', conf]
    return training(config, work_dir, batch_size, iterations, *options)


def ranks_below(machine):
    """The trainings that a launcher started."""
    return [child for child in children_of(machine) if b'train.py' in Path(f'/proc/{child}/cmdline').read_bytes()]


@pytest.mark.slow
@pytest.mark.train
def test_a_rank_that_is_killed_in_training_ends_the_others_in_one_sentence(config, machines, tmp_path, record_fault):
    variables = dict(NNODES='2', MASTER_ADDR='127.0.0.1', PORT=str(free_port()))
    for node in range(2):
        command = training(config, tmp_path / 'work', 2, 10000)
        machines.append(start(command, tmp_path / f'{node}.log', NODE_RANK=str(node), **variables))
    wait_for(lambda: list((tmp_path / 'work').glob('iter_*.pth')), *machines)
    (process,) = ranks_below(machines[1])
    before = {node: (tmp_path / f'{node}.log').read_text() for node in range(2)}
    os.kill(process, signal.SIGKILL)
    assert [machine.wait(END_S) for machine in machines] == [1, 1]
    said = [(tmp_path / f'{node}.log').read_text().removeprefix(before[node]).splitlines() for node in range(2)]
    said = [[line for line in lines if ' - mmengine - ' not in line and line.strip()] for lines in said]
    assert len(said[0]) == len(said[1]) == 1, said
    assert 'rank 0 stops, because another process of the run is gone' in said[0][0]
    assert f'rank 1 (process {process} ' in said[1][0]
    record_fault('lost_ranks')


@pytest.mark.slow
@pytest.mark.train
def test_it_goes_on_with_the_same_bits_where_the_world_is_the_same(config, machines, tmp_path, record_fault):
    for name in ('whole', 'killed'):
        port = free_port()
        machines[:] = [
            start(elastic(config, tmp_path / name, 2, 40, port), tmp_path / f'{name}{node}.log', NODE_RANK=str(node))
            for node in range(2)
        ]
        if name == 'killed':
            wait_for(lambda: list((tmp_path / 'killed').glob('iter_15.pth')), *machines)
            (process,) = ranks_below(machines[1])
            os.kill(process, signal.SIGKILL)
        codes = [machine.wait(LIMIT_S) for machine in machines]
        assert codes == [0, 0], (tmp_path / f'{name}0.log').read_text()[-3000:]
    assert any(restored(tmp_path / f'killed{node}.log') for node in range(2))
    assert differing(tmp_path / 'whole' / 'iter_40.pth', tmp_path / 'killed' / 'iter_40.pth') == []
    record_fault('lost_ranks')


@pytest.mark.slow
@pytest.mark.train
def test_it_goes_on_near_it_where_a_machine_is_lost(config, machines, tmp_path, record_fault):
    """The one that is left has half the batch, and computes another loss of about the same size."""
    port = free_port()
    machines[:] = [
        start(elastic(config, tmp_path / 'work', 2, 60, port), tmp_path / f'{node}.log', NODE_RANK=str(node))
        for node in range(2)
    ]
    wait_for(lambda: list((tmp_path / 'work').glob('iter_15.pth')), *machines)
    end(machines[1])  # the launcher and its rank; the store is the first one's
    assert machines[0].wait(LIMIT_S) == 0, (tmp_path / '0.log').read_text()[-3000:]
    found = losses(tmp_path / 'work')
    assert list(found) == list(range(60))
    worlds = [world for _, world in found.values()]
    assert worlds == sorted(worlds, reverse=True)
    assert set(worlds) == {1, 2}
    (first, *_) = restored(tmp_path / '0.log')
    assert int(first) >= 15
    assert '1 processes instead of 2' in (tmp_path / '0.log').read_text()
    curve = [loss for loss, _ in found.values()]
    change = worlds.index(1)
    assert mean(curve[change : change + 5]) == pytest.approx(mean(curve[change - 5 : change]), rel=0.3)
    assert mean(curve[-10:]) < mean(curve[:10])
    record_fault('lost_ranks')


# What stands for Slurm: srun runs a command once for each task, as on so many machines
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


def test_a_job_that_slurm_ends_goes_back_into_the_queue(slurm, tmp_path, record_fault):
    for status, queued in ((75, True), (1, False)):  # 75: as training ends when it was told to stop
        (tmp_path / 'python').write_text(f'#!/usr/bin/env bash\nexit {status}\n')
        (tmp_path / 'python').chmod(0o755)
        result = subprocess.run(
            ['bash', 'tools/train.sbatch', 'config.py', '1', str(tmp_path / 'work')], cwd=ROOT,
            env={**ENVIRONMENT, **slurm, 'PYTHON': str(tmp_path / 'python')}, timeout=LIMIT_S,
        )  # fmt: skip
        assert result.returncode == status
        log = tmp_path / 'scontrol'
        assert log.exists() == queued
        if queued:
            assert log.read_text() == f'requeue {slurm["SLURM_JOB_ID"]}\n'
            log.unlink()
    record_fault('signals')
