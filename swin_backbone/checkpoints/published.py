"""Addresses of ImageNet weights, by the name of a backbone in `--backbone`."""

_RELEASES = 'https://github.com/SwinTransformer/storage/releases/download/v1.0.0/'
_RELEASES_V2 = 'https://github.com/SwinTransformer/storage/releases/download/v2.0.0/'
_RELEASES_TIMM = 'https://github.com/rwightman/pytorch-image-models/releases/download/v0.1-weights/'
WEIGHT_URLS = {
    'swin-t': _RELEASES + 'swin_tiny_patch4_window7_224.pth',
    'swin-s': _RELEASES + 'swin_small_patch4_window7_224.pth',
    'swin-b': _RELEASES + 'swin_base_patch4_window7_224.pth',
    'swin-l': _RELEASES + 'swin_large_patch4_window7_224_22k.pth',
    'swin-s3-t': _RELEASES_TIMM + 's3_t-1d53f6a8.pth',
    'swin-s3-s': _RELEASES_TIMM + 's3_s-3bb4c69d.pth',
    'swin-s3-b': _RELEASES_TIMM + 's3_b-a1e95db4.pth',
    'swinv2-t': _RELEASES_V2 + 'swinv2_tiny_patch4_window8_256.pth',
    'swinv2-s': _RELEASES_V2 + 'swinv2_small_patch4_window8_256.pth',
    'swinv2-b': _RELEASES_V2 + 'swinv2_base_patch4_window8_256.pth',
    'swinv2-l': _RELEASES_V2 + 'swinv2_large_patch4_window12to16_192to256_22kto1k_ft.pth',
}
