"""FSDP2 (`fully_shard`) and FSDP1 in two processes over gloo: the numbers of a whole model, checkpoints in and out."""

import copy
from functools import partial

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from swin_backbone import SwinBackbone, SwinMLPBackbone, SwinV2Backbone
from swin_backbone.models.layers import SwinBlock
from swin_backbone.models.pyramid import SwinStage

pytestmark = pytest.mark.slow
STEPS = 30
FAMILIES = SwinBackbone, SwinV2Backbone, SwinMLPBackbone


def make_model(family=SwinBackbone, **arguments):
    torch.manual_seed(0)
    arch = dict(embed_dims=16, depths=(2, 2, 2, 2), num_heads=(1, 2, 4, 8), out_indices=(3,))
    return family(**{**arch, **arguments}, window_size=4, drop_path_rate=0.0)


def train(model, rank, steps=STEPS):
    """Return losses. The global batch depends on the step alone."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for step in range(steps):
        images = torch.rand(4, 3, 64, 64, generator=torch.Generator().manual_seed(step))
        loss = (model(images[rank * 2 : rank * 2 + 2])[0].mean((2, 3)) - 0.5).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses.append(total.item() / 2)
    return losses


def shard(model, kind=SwinBlock):
    from torch.distributed.fsdp import fully_shard

    for module in model.modules():
        if isinstance(module, kind):
            fully_shard(module)
    return fully_shard(model)


def work(rank, folder):
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        get_model_state_dict,
        set_model_state_dict,
    )

    torch.set_num_threads(1)
    dist.init_process_group('gloo', init_method=f'file://{folder}/store', rank=rank, world_size=2)
    mesh = dist.device_mesh.init_device_mesh('cpu', (2,))
    of_ddp = train(nn.parallel.DistributedDataParallel(make_model()), rank)
    assert mesh.size() == 2
    sharded = shard(make_model())
    local = sum(parameter.to_local().numel() for parameter in sharded.parameters())
    of_fsdp = train(sharded, rank)
    whole = get_model_state_dict(sharded, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if rank == 0:
        torch.save(dict(ddp=of_ddp, fsdp=of_fsdp, state_dict=whole, local=local), folder / 'run.pth')
    dist.barrier()
    # and back: a single process's checkpoint into shards
    weights = torch.load(folder / 'run.pth')['state_dict']
    again = shard(make_model())
    set_model_state_dict(again, weights, options=StateDictOptions(full_state_dict=True))
    pairs = zip(again.parameters(), sharded.parameters())
    assert all(torch.equal(one.to_local(), other.to_local()) for one, other in pairs)
    dist.destroy_process_group()


def test_losses_are_those_of_ddp_and_checkpoints_go_in_and_out(tmp_path):
    pytest.importorskip('torch.distributed.fsdp', reason='torch is built without FSDP')
    mp.spawn(partial(work, folder=tmp_path), nprocs=2)
    run = torch.load(tmp_path / 'run.pth')
    differences = [abs(one - other) for one, other in zip(run['ddp'], run['fsdp'])]
    assert len(differences) == STEPS
    assert max(differences) < 1e-5
    assert run['fsdp'][-1] < 0.5 * run['fsdp'][0]
    alone = make_model()
    parameters = sum(parameter.numel() for parameter in alone.parameters())
    assert run['local'] < 0.55 * parameters
    assert not alone.load_state_dict(run['state_dict'], strict=True).missing_keys
    assert torch.isfinite(alone(torch.rand(1, 3, 64, 64))[0]).all()


def wrap_by_size(model, least, keeps_parameters):
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy

    policy = partial(size_based_auto_wrap_policy, min_num_params=least)
    return FullyShardedDataParallel(model, auto_wrap_policy=policy, use_orig_params=keeps_parameters, device_id='cpu')


def whole_parameters(model):
    """Return the parameters of a sharded model by name."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    if isinstance(model, FullyShardedDataParallel):
        with FullyShardedDataParallel.summon_full_params(model, writeback=False):
            named = [(name, one.detach().clone()) for name, one in model.named_parameters()]
        return {name.replace('_fsdp_wrapped_module.', ''): one for name, one in named}
    model.reshard()  # after a forward, the module outside has whole parameters
    return {name: one.detach().full_tensor() for name, one in model.named_parameters()}


WAYS = {
    'stages': partial(shard, kind=SwinStage),
    'layers by size': partial(wrap_by_size, least=200, keeps_parameters=True),
    'blocks by size': partial(wrap_by_size, least=2000, keeps_parameters=False),
    'stages by size': partial(wrap_by_size, least=20000, keeps_parameters=True),
}


def step(model, images):
    """Return the maps before and after a step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    maps = model(images)
    sum(y.sin().mean() for y in maps).backward()
    optimizer.step()
    return [*maps, *model(images)]


def work_in_ways(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group('gloo', init_method=f'file://{folder}/store', rank=rank, world_size=2)
    images = torch.randn(2, 3, 50, 70, generator=torch.Generator().manual_seed(0))
    for family in FAMILIES:
        for name, way in WAYS.items():
            for arguments in (dict(out_indices=(0, 2)), dict(with_cp=True, use_abs_pos_embed=True)):
                alone = make_model(family, **arguments)
                sharded = way(copy.deepcopy(alone))
                expected, found = step(alone, images), step(sharded, images)
                weights = whole_parameters(sharded)
                found += [weights[key] for key, _ in alone.named_parameters()]
                expected += [weight.detach() for weight in alone.parameters()]
                label = f'{family.__name__}, {name}, {arguments}'
                torch.testing.assert_close(found, expected, msg=lambda text, label=label: f'{label}: {text}')
    dist.destroy_process_group()


def test_steps_are_those_of_a_whole_model(tmp_path):
    pytest.importorskip('torch.distributed.fsdp', reason='torch is built without FSDP')
    mp.spawn(partial(work_in_ways, folder=tmp_path), nprocs=2)
