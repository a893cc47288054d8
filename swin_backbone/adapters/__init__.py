"""The backbones in other frameworks: one file for each framework.

`import swin_backbone.adapters.timm` registers the backbones in timm, for example. Here torchvision alone is imported:
timm's own import stops beside a torchvision for another torch.
"""

from ..compat import import_torchvision

import_torchvision()
