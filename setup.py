from pathlib import Path
from runpy import run_path

from setuptools import find_packages, setup

HERE = Path(__file__).parent

setup(
    name='swin_backbone',
    version=run_path(str(HERE / 'swin_backbone' / 'version.py'))['__version__'],
    description='Swin Transformer backbones for the OpenMMLab toolboxes',
    long_description=(HERE / 'README.md').read_text(encoding='utf-8'),
    long_description_content_type='text/markdown',
    license='Apache-2.0',
    packages=find_packages(include=['swin_backbone', 'swin_backbone.*']),
    python_requires='>=3.9',
    # Neither distribution of mmcv: both install the module `mmcv`, and would overwrite each other.
    install_requires=['torch>=2.1', 'numpy', 'rich'],
    extras_require={
        'onedl': [
            'onedl-mmengine>=0.10.12',
            'onedl-mmcv>=2.3.6',
            'onedl-mmdetection>=3.5.1',
            'onedl-mmsegmentation>=1.4.2',
        ],
        'openmmlab': ['mmengine>=0.10.7', 'mmcv>=2.1.0', 'mmdet>=3.3.0', 'mmsegmentation>=1.2.2', 'ftfy', 'regex'],
        'test': ['pytest', 'hypothesis'],
        'lint': ['ruff', 'pre-commit'],
    },
)
