"""Small Swin V2 models with different numbers in all weights."""

import torch

from swin_backbone import SwinV2Backbone


def with_random_weights(model):
    for name, parameter in model.named_parameters():
        if 'logit_scale' in name:
            torch.nn.init.uniform_(parameter, 0, 6)  # on both sides of the clamp
        else:
            torch.nn.init.normal_(parameter, mean=float('norm' in name and name.endswith('weight')), std=0.1)
    return model.double().eval()  # logits reach 116, so float32 rounds visibly


def nano(**arguments):
    return SwinV2Backbone(**{'arch': 'nano', 'small_map': 'shrink', **arguments}).double().eval()


def saved(model, path):
    torch.save(model.state_dict(), path)
    return path
