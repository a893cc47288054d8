"""Run an exported model with numpy, OpenCV, and onnxruntime or openvino, without torch or the rest of this package.

    from runtime import load
    model = load('DIR')
    for result in model.predict([cv2.imread('picture.jpg')]):
        ...

Copied next to an exported folder, this file is the only code needed there. `python runtime.py DIR PICTURE...` prints
the results.

Layout: B batch, H W height and width of the model's input, h w those of the original picture, n objects.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Callable, Optional

import cv2
import numpy as np

MANIFEST = 'deploy.json'
DEVICES = {'cpu': 'CPUExecutionProvider', 'cuda': 'CUDAExecutionProvider', 'tensorrt': 'TensorrtExecutionProvider'}
OPENVINO_TYPES = {
    'fp32': 'f32',
    'fp16': 'f32',
    'bf16': 'bf16',
    'int8': 'f32',
}  # of computation; fp16 is for storage only

Result = dict[str, np.ndarray]


class RuntimeProblem(ValueError):
    """A problem that a user can fix: a folder, a missing runtime, a device, a picture."""


class Model:
    """An exported model in its runtime.

    Args:
        folder: what `tools/export.py` made.
        device: 'cpu', or another that the runtime knows: 'cuda' or 'tensorrt' for onnxruntime, 'gpu', 'npu' or 'auto'
            for openvino.
        threads: number of CPU threads; None: the runtime's default.

    Attributes:
        info: the contents of deploy.json.
        classes: the name of each class.

    Raises:
        RuntimeProblem: if the folder is not an exported model, or its runtime or the device is missing.
    """

    def __init__(self, folder: Any, device: str = 'cpu', threads: Optional[int] = None):
        self.folder = Path(folder)
        self.info = read_manifest(self.folder)
        path = self.folder / self.info['file']
        if not path.is_file():
            raise RuntimeProblem(f'{path} is missing: the folder is not whole')
        if threads is not None and threads < 1:
            raise RuntimeProblem(f'threads takes a number from 1, got {threads}')
        runtimes = {'onnx': _open_onnxruntime, 'openvino': _open_openvino}
        if self.info['format'] not in runtimes:
            raise RuntimeProblem(f'{self.folder} holds format {self.info["format"]!r}, which torch itself runs')
        self.run: Callable[..., list[np.ndarray]] = runtimes[self.info['format']](path, self.info, device, threads)
        self.classes: list[str] = self.info.get('classes', [])

    def predict(self, pictures: Iterable[np.ndarray], batch: int = 1, logits: bool = False) -> Iterator[Result]:
        """The result for each picture, one after the other.

        Args:
            pictures: BGR pixels (h, w, 3) uint8, as `cv2.imread` gives them.
            batch: how many are run at a time, if they are of one size and the model takes batches.
            logits: whether a segmentor's logits are wanted too.

        Yields:
            For a segmentor `labels` (h, w), the class indices, and, if asked for, `logits` (K, h, w) float32. For a
            detector `boxes` (n, 4) as x1 y1 x2 y2 in pixels, `scores` (n,), `labels` (n,) and, if it has them, `masks`
            (n, h, w) bool, all sorted best first.

        Raises:
            RuntimeProblem: for a picture that the model cannot take.
        """
        if self.info['task'] == 'maps':
            raise RuntimeProblem('this is a part of a model, without results: call run with its input')
        names = [port['name'] for port in self.info['outputs']]
        wanted = [name for name in names if logits or name != 'logits']
        for group in self._groups(pictures, batch):
            size = np.array(group[0].shape[:2], np.int64)
            inputs = np.stack([self.prepare(picture) for picture in group])
            outputs = dict(zip(wanted, self.run([inputs, size], wanted)))
            for index in range(len(group)):
                yield self._result(outputs, index)

    def prepare(self, picture: np.ndarray) -> np.ndarray:
        """Resize a picture as in the model's config: (H, W, 3) uint8.

        Raises:
            RuntimeProblem: if it is not a picture, is too large, or has another size than the one size that the model
                was exported for.
        """
        if (
            not isinstance(picture, np.ndarray)
            or picture.dtype != np.uint8
            or picture.ndim != 3
            or picture.shape[2] != 3
        ):
            got = f'{picture.dtype} {picture.shape}' if isinstance(picture, np.ndarray) else type(picture).__name__
            raise RuntimeProblem(f'a picture is uint8 pixels (h, w, 3), got {got}')
        resized = resize(picture, self.info['preprocessing']['resize'])
        height, width = resized.shape[:2]
        limit = self.info['limits']['pixels']
        if height * width > limit or picture.shape[0] * picture.shape[1] > limit:
            raise RuntimeProblem(
                f'a picture of {picture.shape[0]}x{picture.shape[1]} pixels, {height}x{width} to the model, is more '
                f'than the {limit} pixels that its {MANIFEST} allows'
            )
        for axis, length in enumerate((height, width)):
            wanted = self.info['inputs'][0]['shape'][1 + axis]
            if isinstance(wanted, int) and wanted != length:
                shape = 'x'.join(map(str, self.info['inputs'][0]['shape'][1:3]))
                raise RuntimeProblem(f'this model takes pictures of {shape} pixels, and one became {height}x{width}')
        return resized

    def _groups(self, pictures: Iterable[np.ndarray], batch: int) -> Iterator[list[np.ndarray]]:
        """Groups of consecutive pictures of the same size, each run as one batch."""
        fixed = self.info['inputs'][0]['shape'][0]
        most = fixed if isinstance(fixed, int) else batch
        group: list[np.ndarray] = []
        for picture in pictures:
            if group and (len(group) == most or getattr(picture, 'shape', None) != group[0].shape):
                yield group
                group = []
            group.append(picture)
        if group:
            yield group

    def _result(self, outputs: dict[str, np.ndarray], index: int) -> Result:
        """The result for one picture of a batch."""
        if self.info['task'] == 'segmentation':
            return {name: value[index] for name, value in outputs.items()}
        of_picture = outputs['image'] == index
        result = {name: value[of_picture] for name, value in outputs.items() if name != 'image'}
        if 'masks' in result:
            result['masks'] = result['masks'].astype(bool)
        return result


load = Model


def read_manifest(folder: Path) -> dict:
    """The contents of deploy.json.

    Raises:
        RuntimeProblem: if it cannot be read.
    """
    try:
        return json.loads((folder / MANIFEST).read_text(encoding='utf-8'))
    except (OSError, ValueError) as error:
        raise RuntimeProblem(f'{folder} is no exported model: its {MANIFEST} cannot be read ({error})') from error


def resize(picture: np.ndarray, rule: Optional[dict]) -> np.ndarray:
    """A picture resized by the rule of a config: bilinear, to the `scale` (width, height), in which it fits if its
    proportions are kept; None: as it is.

    Raises:
        RuntimeProblem: if no pixel is left, or there was none.
    """
    height, width = new_height, new_width = picture.shape[:2]
    if rule is not None and height and width:
        new_width, new_height = rule['scale']
        if rule['keep_ratio']:
            long, short = max(rule['scale']), min(rule['scale'])
            factor = min(long / max(height, width), short / min(height, width))
            new_width, new_height = int(width * factor + 0.5), int(height * factor + 0.5)
    if not (new_height and new_width):
        raise RuntimeProblem(f'a picture of {height}x{width} pixels would be {new_height}x{new_width} to the model')
    if rule is None:
        return picture
    return cv2.resize(picture, (new_width, new_height), interpolation=cv2.INTER_LINEAR)


def _open_onnxruntime(path: Path, info: dict, device: str, threads: Optional[int]) -> Callable[..., list[np.ndarray]]:
    try:
        import onnxruntime
    except ImportError as error:
        raise RuntimeProblem(f'{path} needs onnxruntime, which is not installed: pip install onnxruntime') from error
    kind, _, number = device.partition(':')
    provider = DEVICES.get(kind)
    if provider not in onnxruntime.get_available_providers():
        there = ', '.join(name for name, its in DEVICES.items() if its in onnxruntime.get_available_providers())
        raise RuntimeProblem(f'onnxruntime has no device {device!r} here; it has {there}')
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if threads is not None:
        options.intra_op_num_threads = threads
    settings = {'device_id': number} if number else {}
    session = onnxruntime.InferenceSession(str(path), options, providers=[(provider, settings)])
    names = [port['name'] for port in info['inputs']]

    def run(inputs: Sequence[np.ndarray], outputs: Optional[Sequence[str]] = None) -> list[np.ndarray]:
        return session.run(outputs, dict(zip(names, inputs)))

    return run


def _open_openvino(path: Path, info: dict, device: str, threads: Optional[int]) -> Callable[..., list[np.ndarray]]:
    try:
        import openvino
    except ImportError as error:
        raise RuntimeProblem(f'{path} needs openvino, which is not installed: pip install openvino') from error
    core = openvino.Core()
    if device.upper() != 'AUTO' and device.upper() not in core.available_devices:
        there = ', '.join(name.lower() for name in core.available_devices)
        raise RuntimeProblem(f'openvino has no device {device!r} here; it has {there}')
    # On a CPU with matrix units openvino would compute in bf16, unless it is told otherwise.
    settings: dict[str, Any] = {'INFERENCE_PRECISION_HINT': OPENVINO_TYPES[info['precision']]}
    if threads is not None:
        settings['INFERENCE_NUM_THREADS'] = threads
    compiled = core.compile_model(str(path), device.upper(), settings)
    everything = [port['name'] for port in info['outputs']]

    def run(inputs: Sequence[np.ndarray], outputs: Optional[Sequence[str]] = None) -> list[np.ndarray]:
        found = compiled(list(inputs), share_outputs=False)
        return [found[name] for name in (outputs or everything)]

    return run


def main(folder: str, *paths: str) -> None:
    """Print the results for pictures: a detector's objects, or a segmentor's classes and their shares of the pixels."""
    model = load(folder)
    for path, result in zip(paths, model.predict(map(_read, paths))):
        if 'boxes' in result:
            clear = [
                (model.classes[i], float(score)) for i, score in zip(result['labels'], result['scores']) if score > 0.3
            ]
            print(path, ', '.join(f'{name} {score:.2f}' for name, score in clear) or 'nothing')
        else:
            shares = np.bincount(result['labels'].ravel(), minlength=len(model.classes)) / result['labels'].size
            print(path, ', '.join(f'{name} {share:.0%}' for name, share in zip(model.classes, shares) if share >= 0.01))
    print('torch was imported' if 'torch' in sys.modules else 'without torch')


def _read(path: str) -> np.ndarray:
    pixels = cv2.imread(path)
    if pixels is None:
        raise RuntimeProblem(f'{path} cannot be read as a picture')
    return pixels


if __name__ == '__main__':
    if len(sys.argv) < 3:
        sys.exit(f'{sys.argv[0]} takes DIR PICTURE...: a folder that tools/export.py made, and pictures')
    try:
        main(*sys.argv[1:])
    except RuntimeProblem as error:
        sys.exit(f'{sys.argv[0]}: {error}')
