"""The published sizes (Liu et al. 2021, section 3.3; 2022, section 3.5), and `nano` for demos and tests."""

from typing import NamedTuple

DEFAULT_WINDOW = 7  # default window of Swin V1, mmdet and mmseg


class Arch(NamedTuple):
    embed_dims: int  # channels of the first stage; each further stage doubles them
    depths: tuple[int, ...]  # blocks of each stage
    num_heads: tuple[int, ...]  # attention heads of each stage


ARCHS: dict[str, Arch] = {
    'nano': Arch(32, (2, 2, 2, 2), (2, 4, 8, 16)),
    'tiny': Arch(96, (2, 2, 6, 2), (3, 6, 12, 24)),
    'small': Arch(96, (2, 2, 18, 2), (3, 6, 12, 24)),
    'base': Arch(128, (2, 2, 18, 2), (4, 8, 16, 32)),
    'large': Arch(192, (2, 2, 18, 2), (6, 12, 24, 48)),
}

# Sizes of Swin V2. The paper does not give the heads of Huge; these are mmpretrain's.
ARCHS_V2: dict[str, Arch] = {
    **ARCHS,
    'huge': Arch(352, (2, 2, 18, 2), (8, 16, 32, 64)),
    'giant': Arch(512, (2, 2, 42, 4), (16, 32, 64, 128)),
}
EXTRA_NORM_OF_ARCH = {'huge': 6, 'giant': 6}  # V2: every n-th block has a norm that bounds the values of wide models
# Swin-MLP of microsoft/Swin-Transformer. The three sizes of width 96 have 24, 12 and 6 channels per head.
ARCHS_MLP: dict[str, Arch] = {
    'nano': Arch(32, (2, 2, 2, 2), (2, 4, 8, 16)),
    'tiny': Arch(96, (2, 2, 6, 2), (4, 8, 16, 32)),
    'tiny-c12': Arch(96, (2, 2, 6, 2), (8, 16, 32, 64)),
    'tiny-c6': Arch(96, (2, 2, 6, 2), (16, 32, 64, 128)),
    'base': Arch(128, (2, 2, 18, 2), (4, 8, 16, 32)),
}
