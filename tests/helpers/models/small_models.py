"""Small models with different numbers in all weights, and the texts of log records."""

import torch

from swin_backbone import SwinBackbone

TWO_STAGES = dict(depths=(1, 2), num_heads=(2, 4), strides=(4, 2), out_indices=(0, 1), drop_path_rate=0.0)


def randomised(output_norms=True, kind=SwinBackbone, **arguments):
    """Return a backbone with random parameters. Output norms stay as initialised if `output_norms` is false."""
    backbone = kind(**{'arch': 'nano', **arguments}).eval()
    for name, parameter in backbone.named_parameters():
        if output_norms or not name.startswith('norm'):
            torch.nn.init.normal_(parameter, std=0.1)
    return backbone


class Detector(torch.nn.Module):
    """A backbone and a neck with the names of a whole model."""

    def __init__(self, backbone):
        super().__init__()
        self.backbone = backbone
        self.neck = torch.nn.Module()
        self.neck.fpn = torch.nn.Linear(2, 1, bias=False)
        self.neck.fpn.weight = torch.nn.Parameter(torch.zeros(2))


def lines(records, level='INFO'):
    return [record.getMessage() for record in records if record.levelname == level]
