"""Small models whose every weight says which it is, and what they log."""

import torch

from swin_backbone import SwinBackbone


def randomised(output_norms=True, **arguments):
    """A backbone with every parameter away from its initialisation; output norms too, or as they are initialised."""
    backbone = SwinBackbone(**{'arch': 'nano', **arguments}).eval()
    for name, parameter in backbone.named_parameters():
        if output_norms or not name.startswith('norm'):
            torch.nn.init.normal_(parameter, std=0.1)
    return backbone


class Detector(torch.nn.Module):
    """What is around a backbone in a whole model, as far as names go."""

    def __init__(self, backbone):
        super().__init__()
        self.backbone = backbone
        self.neck = torch.nn.Module()
        self.neck.fpn = torch.nn.Linear(2, 1, bias=False)
        self.neck.fpn.weight = torch.nn.Parameter(torch.zeros(2))


def lines(records, level='INFO'):
    return [record.getMessage() for record in records if record.levelname == level]
