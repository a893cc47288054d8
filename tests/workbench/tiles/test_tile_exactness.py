"""A tiled UPerNet beside the whole picture's, with the overlap that docs/measurements/tiles.md names."""

import math
import re

import cv2
import numpy as np
import pytest
import torch
from helpers import ROOT
from helpers.export.small_exports import randomise
from helpers.openmmlab.jobs import open_predictor
from helpers.openmmlab.oracles import noise
from helpers.openmmlab.random_models import SEGMENTATION, save_random_model
from mmengine.config import Config

from swin_backbone.archs import ARCHS
from swin_backbone.workbench.data.media import Frame, Medium

pytest.importorskip('swin_backbone.workbench.tiles', reason='the extra tiles is not installed')

import tifffile

from swin_backbone.workbench.tiles import TiledInference

STRIDES = (4, 8, 16, 32)
# UPerNet from a pixel to the coarsest map. Stride 4: a resize and two 3x3 convolutions. Strides 8, 16 and 32: resizes.
# Stride 32: a 3x3 convolution.
HEAD = 4 + 4 + 4 + 8 + 16 + 32 + 32


def reach(depth, window):
    """Return the largest reach of a token through a stage, in tokens to a side."""
    most = 0
    for token in range(10 * window, 11 * window):
        first = last = token
        for index in reversed(range(depth)):
            shift = window // 2 if index % 2 else 0  # windows begin at `shift`
            first = (first - shift) // window * window + shift
            last = ((last - shift) // window + 1) * window + shift - 1
        most = max(most, token - first, last - token)
    return most


def reach_of(depths, window):
    """Return the reach of a UPerNet in pixels."""
    return HEAD + sum(reach(depth, window) * stride for depth, stride in zip(depths, STRIDES))


def test_the_reach_that_the_page_names():
    text = (ROOT / 'docs' / 'measurements' / 'tiles.md').read_text(encoding='utf-8')
    results = re.findall(r'^\| (.+) window (\d+) \| (\d+) \| (\d+) \|$', text, re.M)
    assert len(results) == 4
    for names, window, pixels, field in results:
        depths = {ARCHS[size].depths for size in ('nano', 'tiny', 'small', 'base', 'large')
                  if re.search(rf'\b{size if size == "nano" else size[0].upper()}\b', names)}  # fmt: skip
        assert {reach_of(depth, int(window)) for depth in depths} == {int(pixels)}
        assert int(field) == 2 * int(pixels) + 1
    assert [reach(depth, 7) for depth in (2, 6, 18)] == [10, 24, 66]
    assert [reach(depth, 12) for depth in (2, 18)] == [17, 113]


def predictor_of(tmp_path, window):
    """Build a random UPerNet with pooled maps of 0. Pooled maps depend on the whole picture."""
    cfg = Config.fromfile(SEGMENTATION)
    cfg.model.backbone.window_size = window
    predictor = open_predictor(cfg, str(save_random_model(cfg, tmp_path, randomise)), 'cpu')
    head = predictor.model.decode_head

    def without_pooling(inputs):
        x = inputs[-1]
        pooled = x.new_zeros(len(x), head.bottleneck.conv.in_channels - x.shape[1], *x.shape[2:])
        return head.bottleneck(torch.cat([x, pooled], 1))

    head.psp_forward = without_pooling
    return predictor


def agreement(tmp_path, predictor, pixels, tile, overlap):
    """Return the share of pixels with the label of the whole picture, and the number of tiles."""
    cv2.imwrite(str(tmp_path / 'a.png'), pixels)
    out = tmp_path / f'{tile}-{overlap}-{pixels.shape[0]}x{pixels.shape[1]}'
    job = TiledInference(predictor, tmp_path / 'a.png', out, tile=tile, overlap=overlap)
    (path,) = job.run().files
    prepared = predictor.preprocess(Frame(Medium(tmp_path / 'a.png', 'a', False), 0, pixels, pixels.shape[:2]))
    whole = predictor.compute_scores(prepared).argmax(0)
    assert len(np.unique(whole)) > 1
    return float((tifffile.imread(path) == whole).mean()), len(job.grid)


def test_labels_equal_the_whole_pictures_at_the_pages_overlap(tmp_path):
    """Use windows of 2 tokens with a small receptive field, in wide and high pictures."""
    predictor = predictor_of(tmp_path, 2)
    assert predictor.window_alignment == 64
    side = 2 * reach_of(ARCHS['nano'].depths, 2)  # the receptive field
    field = math.ceil(side / 64) * 64
    pixels = noise((96, 2 * field + 896))
    for one in (pixels, np.ascontiguousarray(pixels.transpose(1, 0, 2))):
        share, tiles = agreement(tmp_path, predictor, one, 2 * field + 128, field)
        assert tiles > 1
        assert share >= 0.999
    exact, tiles = agreement(tmp_path, predictor, noise((64, 4 * field + 608)), 4 * field + 128, 2 * field)
    assert tiles > 1
    assert exact >= 0.99999  # rounding changes few labels
    less, _ = agreement(tmp_path, predictor, pixels, 192, 0)
    assert less < 0.995  # without overlap the labels differ
