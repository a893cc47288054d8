"""Backbones under the wrappers of data-parallel training, on a CPU."""

import pytest
import torch
from torch import nn


def data_parallel(wrap, backbone):
    """Wrap `backbone` in 'DDP', 'FSDP' or 'FSDP2', in the process group of the fixture `one_process`."""
    if wrap == 'FSDP2':
        fsdp = pytest.importorskip('torch.distributed.fsdp')
        for stage in backbone.stages:
            for block in stage.blocks:
                fsdp.fully_shard(block, mesh=torch.distributed.init_device_mesh('cpu', (1,)))
        return fsdp.fully_shard(backbone, mesh=torch.distributed.init_device_mesh('cpu', (1,)))
    if wrap == 'FSDP':
        return torch.distributed.fsdp.FullyShardedDataParallel(backbone, device_id=torch.device('cpu'))
    return nn.parallel.DistributedDataParallel(backbone)
