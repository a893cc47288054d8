"""DETRs with extra inputs besides a config of mmdet: Co-DINO's code, and texts for Grounding DINO."""

import importlib
import re
from types import SimpleNamespace

import pytest
import torch
from helpers.adapters.frameworks import original
from helpers.export.small_exports import compare_graph, judge, require, save_checkpoint, small_config
from mmengine.registry import MODELS, DefaultScope
from torch import nn

from swin_backbone.workbench.export import export, runtime
from swin_backbone.workbench.export.graph import ExportError

CO_DINO = 'projects/CO-DETR/configs/codino/co_dino_5scale_swin_l_16xb1_1x_coco.py'
GROUNDING_DINO = 'mmdet::mm_grounding_dino/grounding_dino_swin-t_pretrain_obj365.py'


@pytest.fixture
def co_dino(monkeypatch):
    """Return the config of a small Co-DINO from mmdet's project. The config registers the project's code."""
    root = original('mmdetection')
    monkeypatch.syspath_prepend(str(root))
    importlib.invalidate_caches()
    return small_config(str(root / CO_DINO), swin=False)


@pytest.fixture
def grounding_dino(monkeypatch):
    """Return a small Grounding DINO. OneDL's mmdet 3.5.1 encodes boxes with twice the decoder's width."""
    from mmdet.models.layers.transformer import dino_layers

    encode = dino_layers.coordinate_to_encoding
    monkeypatch.setattr(dino_layers, 'coordinate_to_encoding', lambda boxes, num_feats=128: encode(boxes, 128))
    cfg = small_config(GROUNDING_DINO, swin=False)
    cfg.model.language_model = dict(type=Words)
    cfg.test_dataloader.dataset.pipeline[-1].meta_keys += ('text', 'custom_entities')
    return cfg


class Words(nn.Module):
    """A language model with the interface of mmdet's BertModel. A token is a word or a full stop."""

    WORD = re.compile(r'\w+|\.')
    max_tokens, pad_to_max = 256, False

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(64, 24)
        self.language_backbone = nn.Module()
        self.language_backbone.body = SimpleNamespace(language_dim=24)
        self.captions = []

    def tokenizer(self, captions, **_):
        spans = [word.span() for word in self.WORD.finditer(captions[0])]
        return SimpleNamespace(
            char_to_token=lambda place: next((i + 1 for i, (a, b) in enumerate(spans) if a <= place < b), None),
            input_ids=torch.zeros(1, len(spans) + 2, dtype=torch.long),
        )

    def forward(self, captions):
        self.captions += captions
        words = ['[CLS]', *self.WORD.findall(captions[0]), '[SEP]']
        ids = torch.tensor([[sum(map(ord, word)) % 64 for word in words]])
        part = torch.tensor([words[:i].count('.') for i in range(len(words))])
        place = torch.arange(len(words)) - torch.searchsorted(part, part)
        B = len(captions)
        return dict(
            embedded=self.embedding(ids).expand(B, -1, -1),
            masks=(part[:, None] == part).expand(B, -1, -1),
            position_ids=place.expand(B, -1),
            text_token_mask=torch.ones(B, len(words), dtype=torch.bool),
        )


def check_free_sizes(cfg, folder, texts=()):
    """Test the graph without a file, like test_families.py."""
    results = list(compare_graph(cfg, save_checkpoint(cfg, folder / 'x.pth'), texts))
    assert len(results) == 4
    judge([figures for figures, _ in results])


def export_checked(cfg, folder, **settings):
    require('onnx')
    checkpoint = str(save_checkpoint(cfg, folder / 'x.pth'))
    manifest = export.export_model(cfg, checkpoint, folder / 'out', 'onnx', shape=(96, 130), **settings)
    judge(manifest['verification'])
    return manifest


def test_co_dino_of_free_sizes(co_dino, tmp_path):
    co_dino.model.test_cfg[0].max_per_img = 20
    check_free_sizes(co_dino, tmp_path)


@pytest.mark.parametrize('nms', [None, dict(type='nms', iou_threshold=0.5)])
def test_co_dino_of_one_size(co_dino, nms, tmp_path):
    co_dino.model.test_cfg[0].update(nms=nms, score_thr=0.1, max_per_img=20)
    export_checked(co_dino, tmp_path)


def test_co_dino_by_another_head_is_refused(co_dino):
    co_dino.model.eval_module = 'one-stage'
    with DefaultScope.overwrite_default_scope('mmdet'):
        model = MODELS.build(co_dino.model)
    with pytest.raises(ExportError, match="CoDETR with CoDINOHead and eval_module='one-stage' cannot be exported"):
        export.build_graph(model, co_dino, 'model', None)


def test_grounding_dino_of_free_sizes(grounding_dino, tmp_path):
    check_free_sizes(grounding_dino, tmp_path, ('cat', 'green apple', 'dog'))


def test_texts_are_the_classes_and_the_language_model_stays_outside(grounding_dino, tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(export, 'write_folder', lambda graph, *_, meta, **__: written.extend((graph, meta)))
    checkpoint = str(save_checkpoint(grounding_dino, tmp_path / 'x.pth'))
    export.export_model(
        grounding_dino, checkpoint, tmp_path / 'out', shape=(96, 130), texts=['cat', 'green apple', 'dog']
    )
    graph, meta = written
    assert meta['classes'] == ['cat', 'green apple', 'dog']
    assert (64, 24) not in [tuple(one.shape) for one in graph.module.parameters()]


@pytest.mark.slow
def test_grounding_dino_of_one_size(grounding_dino, tmp_path):
    manifest = export_checked(grounding_dino, tmp_path, texts=['cat', 'green apple', 'dog'])
    assert manifest['classes'] == ['cat', 'green apple', 'dog']
    import onnx

    model = onnx.load(str(tmp_path / 'out' / 'model.onnx'))
    assert [64, 24] not in [list(one.dims) for one in model.graph.initializer], 'the language model is in the file'
    assert runtime.RuntimeModel(tmp_path / 'out').classes == ['cat', 'green apple', 'dog']


def test_texts_are_for_models_that_read_them(tmp_path):
    cfg = small_config('retinanet/retinanet_swin-t-p4-w7_fpn_1x_coco.py', swin=False)
    checkpoint = str(save_checkpoint(cfg, tmp_path / 'x.pth'))
    with pytest.raises(ExportError, match='--texts needs a model with a language_model, got RetinaNet'):
        export.export_model(cfg, checkpoint, tmp_path / 'out', texts=['cat'])


def test_a_text_without_tokens_is_refused(grounding_dino, tmp_path):
    checkpoint = str(save_checkpoint(grounding_dino, tmp_path / 'x.pth'))
    with pytest.raises(ExportError, match="--texts takes classes that the language model reads, got '!'"):
        export.export_model(grounding_dino, checkpoint, tmp_path / 'out', texts=['cat', '!'])
