"""What a layer hands to a backend, and what a backend is.

Layout: B batch, H W height and width of a map, C channels, T tokens, h heads, N places of a window.
"""

from collections.abc import Callable
from typing import NamedTuple, Optional, Protocol, Union

import torch
from torch import Tensor

from ..compat import is_exporting, is_transformed
from ..windows.grid import Geometry, Size
from .weight_cache import WeightCache

StripTokens = Union[int, str, None]


class BlockWeights(NamedTuple):
    """The tensors a block computes with; the weights of linear layers are (out, in)."""

    norm1_weight: Optional[Tensor]
    norm1_bias: Optional[Tensor]
    qkv_weight: Tensor
    qkv_bias: Optional[Tensor]
    position_bias_hNN: Tensor
    proj_weight: Tensor
    proj_bias: Optional[Tensor]
    norm2_weight: Optional[Tensor]
    norm2_bias: Optional[Tensor]
    fc1_weight: Tensor
    fc1_bias: Optional[Tensor]
    fc2_weight: Tensor
    fc2_bias: Optional[Tensor]
    drop_path_2B: Optional[Tensor]  # stochastic depth's factor for each branch and image; None: 1
    # Of Swin V2 alone:
    cosine_scale_h: Optional[Tensor] = None  # the factor on the cosine of query and key; None: dot products
    norm3_weight: Optional[Tensor] = None
    norm3_bias: Optional[Tensor] = None


class MLPBlockWeights(NamedTuple):
    """The tensors a block of Swin-MLP computes with."""

    norm1_weight: Optional[Tensor]
    norm1_bias: Optional[Tensor]
    mix_weight_hNN: Tensor
    mix_bias_hN: Tensor
    norm2_weight: Optional[Tensor]
    norm2_bias: Optional[Tensor]
    fc1_weight: Tensor
    fc1_bias: Optional[Tensor]
    fc2_weight: Tensor
    fc2_bias: Optional[Tensor]
    drop_path_2B: Optional[Tensor]


class BlockSettings(NamedTuple):
    """The settings of a block that are not weights."""

    kind: str  # of the block: 'v1', 'v2' or 'mlp'
    weight_dtype: torch.dtype  # of linear layers, as they are stored
    scale: float  # of q k^T
    eps: tuple[float, ...]  # of the two norms; of three, where Swin V2 has one on the shortcut
    activation: Callable[[Tensor], Tensor]
    attn_drop: float  # of attention weights
    proj_drop: float  # behind the attention
    hidden_drop: float  # of the MLP's hidden tokens
    ffn_drop: float  # behind the MLP
    attention_channels: Optional[int] = None  # of the queries of all heads; None: those of the block

    @property
    def has_dropout(self) -> bool:
        """Whether a block draws random numbers, apart from those of drop path."""
        return any((self.attn_drop, self.proj_drop, self.hidden_drop, self.ffn_drop))


class EmbeddingWeights(NamedTuple):
    """The tensors patch embedding computes with; the norm is None where there is none."""

    projection_weight: Tensor  # of the convolution: (C, channels of the image, rows, columns)
    projection_bias: Optional[Tensor]
    norm_weight: Optional[Tensor]
    norm_bias: Optional[Tensor]


class MergingWeights(NamedTuple):
    """The tensors patch merging computes with, over the channels of 2 x 2 neighbours in the order of `nn.Unfold`."""

    reduction_weight: Tensor
    norm_weight: Optional[Tensor]
    norm_bias: Optional[Tensor]


class Request(NamedTuple):
    """What a backend is asked to compute: the blocks of one stage in one forward."""

    kind: str  # of the blocks: 'v1', 'v2' or 'mlp'
    device: torch.device
    dtype: torch.dtype  # of linear layers: autocast's, or that of the input
    weight_dtypes: frozenset[torch.dtype]  # of linear layers, as they are stored
    recorded: Optional[str]  # what records or transforms the forward, in words; None: it is just computed
    channels: int
    hidden_channels: int  # of the MLP
    head_dim: int
    window_size: Size
    attn_drop: float  # dropout of attention weights, where it is active
    has_dropout: bool  # whether any dropout is active
    exact_gelu: bool  # whether this is each block's activation
    strip_tokens: StripTokens
    has_all_heads: bool = True  # whether the queries of each block have as many channels as its tokens


def recorder_of(x: Tensor) -> Optional[str]:
    """What records or transforms what is done to `x`, in words; None: it is just computed."""
    if torch.compiler.is_compiling():
        return 'torch.export' if is_exporting() else 'torch.compile'
    if torch.jit.is_tracing():  # type: ignore[attr-defined,no-untyped-call]  # torch has no types for it
        return 'torch.jit.trace'
    if x.device.type == 'meta':
        return 'the meta device'
    return 'torch.func' if is_transformed() else None


class Plan(NamedTuple):
    """How a stage is computed in one forward."""

    backend: 'Backend'
    dtype: Optional[torch.dtype] = None  # of linear layers, under automatic mixed precision
    strip_tokens: Optional[int] = None  # how many tokens are computed at a time; None: whole maps
    with_cp: bool = False  # recompute blocks in backward, where they are not run in strips, which always do
    overwrite: bool = False  # whether a block may put its output where its input is
    unmodified: bool = False  # whether each layer of the backbone is known to be the one it was built with


class Backend(Protocol):
    """A way to compute the four kinds of layer of a backbone.

    All take a map or image, the weights in their own dtype, the plan, and the layer's `WeightCache`, in which a backend
    keeps what it makes from the weights.
    """

    name: str

    def why_not(self, request: Request) -> Optional[str]:
        """Why this backend cannot compute a stage, in one sentence; None: it can."""

    def embed(
        self, image_BCHW: Tensor, w: EmbeddingWeights, eps: Optional[float], plan: Plan, cache: WeightCache
    ) -> Tensor:
        """Project each patch to a token and normalise it: (B, ceil(H / patch), ceil(W / patch), C).

        Args:
            image_BCHW: patches at the bottom and right edge are zero-padded.
            eps: of the norm; None: there is no norm.
        """

    def block(
        self,
        x_BHWC: Tensor,
        w: Union[BlockWeights, MLPBlockWeights],
        settings: BlockSettings,
        geometry: Geometry,
        plan: Plan,
        cache: WeightCache,
    ) -> Tensor:
        """One block on a batch of maps: (B, H, W, C).

        Args:
            w: `BlockWeights`, or `MLPBlockWeights`, where `settings.kind` is 'mlp'.
        """

    def merge(
        self, x_BHWC: Tensor, w: MergingWeights, eps: Optional[float], post_norm: bool, plan: Plan, cache: WeightCache
    ) -> Tensor:
        """Concatenate 2 x 2 neighbours, normalise, project: (B, ceil(H / 2), ceil(W / 2), C'). An odd side is padded.

        Args:
            eps: of the norm; None: there is no norm.
            post_norm: project, then normalise (Swin V2).
        """

    def output_norm(
        self, x_BHWC: Tensor, weight: Optional[Tensor], bias: Optional[Tensor], eps: float, plan: Plan
    ) -> Tensor:
        """Layer norm, then the map that necks and heads read: (B, C, H, W), contiguous."""

    def windows(self, geometry: Geometry, kind: str) -> 'Windows':
        """All windows of a batch of maps, for a block whose layers a user has changed: they are called one by one."""


class Windows(Protocol):
    """Some windows of a batch of maps. `tokens` below are (T, C), or for `RolledWindows` whole maps (B, H, W, C)."""

    def read(self, x_BHWC: Tensor) -> Tensor:
        """The tokens in these windows."""

    def write(self, y: Tensor, x_BHWC: Tensor, out_BHWC: Optional[Tensor]) -> Tensor:
        """Put the computed tokens in their places in `out_BHWC`; None: in a new map of the same shape."""

    def linear(
        self,
        x: Tensor,
        weight_DC: Tensor,
        bias_D: Optional[Tensor],
        activation: Optional[Callable[[Tensor], Tensor]] = None,
        gradient_only: bool = False,
    ) -> Tensor:
        """A linear layer over tokens: `functions.block.linear`, or a faster equivalent."""

    def pad(self, x: Tensor, by_bias: bool = False) -> Tensor:
        """The tokens, with zeros for places outside the map; `by_bias`: or not, as `attend` gets the bias of qkv."""

    def attend(
        self, qkv: Tensor, bias_hNN: Tensor, scale: float, dropout: float, qkv_bias_3C: Optional[Tensor] = None
    ) -> Tensor:
        """Softmax(scale q k^T + bias) v inside each window (Liu et al. 2021, equation 4).

        Tokens that are neighbours only because of the cyclic shift do not attend to each other.

        Args:
            qkv: query, key and value of each padded token, concatenated; in each of the three, its heads.
            bias_hNN: the relative position bias.
            dropout: probability with which an attention weight is dropped.
            qkv_bias_3C: of tokens padded `by_bias`: what qkv has for zeros; None: zeros.

        Returns:
            The tokens, without padding.
        """

    def per_token(self, values_B: Tensor) -> Tensor:
        """One value for each image, in a shape that broadcasts over its tokens."""

    def per_image(self, x: Tensor) -> Tensor:
        """The tokens with the image as first dimension; only where these are all windows of the maps."""
