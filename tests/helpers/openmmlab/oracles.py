"""Models with exact predictions, in place of trained models. Differences come from the tiles alone."""

import os
import signal

import cv2
import numpy as np
from mmengine.structures import BaseDataElement, InstanceData

COLOURS = [(255, 40, 40), (40, 255, 40), (40, 40, 255)]  # BGR, of the classes of objects


class Oracle:
    """The interface of a predictor for tiles.

    Args:
        dies_at: number of the tile that kills the process, counted from 0.
    """

    window_alignment, score_thr = 1, 0.3
    classes = ('one', 'two', 'three')

    def __init__(self, fingerprint='oracle', dies_at=None):
        self.fingerprint, self.dies_at, self.seen = fingerprint, dies_at, 0
        self.meta = dict(classes=self.classes, palette=COLOURS)

    def preprocess(self, frame):
        if self.seen == self.dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.seen += 1
        return dict(inputs=frame.pixels)

    def compute_input_size(self, size):
        return size


class Segmentor(Oracle):
    """Scores of three classes. A score depends on 15 pixels on all sides. A cut changes scores."""

    scope = 'mmseg'
    classes = ('dark', 'middle', 'light')

    def compute_scores(self, model_input):
        grey_HW = cv2.blur(model_input['inputs'].astype(np.float32).mean(2), (31, 31), borderType=cv2.BORDER_REPLICATE)
        return np.stack([-np.abs(grey_HW - level) for level in (60, 128, 190)])


class Detector(Oracle):
    """Return connected regions of a class's colour, with masks. A larger region has a higher score."""

    scope = 'mmdet'

    def __init__(self, *args, masks=True, **kwargs):
        super().__init__(*args, **kwargs)
        self.masks = masks

    def predict(self, model_inputs):
        samples = []
        for item in model_inputs:
            regions = []
            for label, colour in enumerate(COLOURS):
                number, parts_HW = cv2.connectedComponents((item['inputs'] == colour).all(2).astype(np.uint8))
                for index in range(1, number):
                    rows, columns = np.nonzero(parts_HW == index)
                    box = columns.min(), rows.min(), columns.max() + 1, rows.max() + 1
                    regions.append((box, 1 - 1 / (1 + len(rows)), label, parts_HW == index))
            boxes, scores, labels, masks = zip(*regions) if regions else ((), (), (), ())
            size = item['inputs'].shape[:2]
            instances = InstanceData(
                bboxes=np.array(boxes, float).reshape(-1, 4), scores=np.array(scores), labels=np.array(labels, int)
            )
            if self.masks:
                instances.masks = np.array(masks, bool).reshape(-1, *size)
            samples.append(BaseDataElement(pred_instances=instances))
        return samples


def noise(size, seed=0):
    """Return a smooth random picture, BGR."""
    small = np.random.default_rng(seed).integers(0, 256, (max(2, size[0] // 16), max(2, size[1] // 16), 3), np.uint8)
    return cv2.resize(small, size[::-1], interpolation=cv2.INTER_CUBIC)


def scene(size, number, seed=0, largest=40):
    """Return a picture of ellipses that do not touch, and a mask for each ellipse."""
    rng = np.random.default_rng(seed)
    picture, masks = np.full((*size, 3), 90, np.uint8), []
    taken = np.zeros(size, bool)
    for _ in range(20 * number):
        if len(masks) == number:
            break
        mask = np.zeros(size, np.uint8)
        centre = int(rng.integers(size[1])), int(rng.integers(size[0]))
        axes = tuple(map(int, rng.integers(6, largest, 2)))
        cv2.ellipse(mask, centre, axes, float(rng.integers(180)), 0, 360, 1, -1)
        if not (taken & cv2.dilate(mask, np.ones((9, 9))).astype(bool)).any():
            taken |= mask.astype(bool)
            picture[mask.astype(bool)] = COLOURS[len(masks) % 3]
            masks.append(mask.astype(bool))
    return picture, masks  # possibly fewer than `number`
