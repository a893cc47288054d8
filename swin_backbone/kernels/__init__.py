"""What computes in the place of torch: the compiled library on CPUs, and a Triton kernel on GPUs.

An import of `bind` and `triton` registers the replacements (`swin_backbone.replace`). Models compute the same numbers
without this package.
"""

from ..models import layers as layers  # first: models import the replacements, which import windows and blocks
