"""Run the Python blocks of docs/guides/other_toolboxes.md with the real packages."""

import re
from pathlib import Path

import pytest
from helpers.adapters.detectron2_models import detectron2_source
from helpers.adapters.frameworks import give_torchvision_operators, require

STOPPED = '(?:timm|segmentation_models_pytorch|torchvision|detectron2|transformers|peft|lightning)'
PAGE = Path(__file__).parents[2] / 'docs' / 'guides' / 'other_toolboxes.md'
RECIPE = re.compile(r'^<!-- not run: it needs (\w+), with which .*? -->\n```python\n(.*?)^```', re.M | re.S)
RECIPES = {}  # package: Python blocks in the order of the page
for _package, _block in RECIPE.findall(PAGE.read_text(encoding='utf-8')):
    RECIPES.setdefault(_package, []).append(_block)
CHECKS = {
    'timm': 'assert [x.shape[1] for x in maps] == model.feature_info.channels() == [192, 384, 768]',
    'segmentation_models_pytorch': 'assert masks.shape == (2, 4, 75, 101)',
    'detectron2': 'from detectron2.modeling import build_backbone; assert build_backbone(cfg).size_divisibility == 32',
    'torchvision': 'assert model.eval()([torch.rand(3, 75, 101)])[0]["boxes"].shape[1] == 4',
    'transformers': 'assert model.backbone.channels == [96, 192, 384, 768]',
    'huggingface_hub': 'assert backbone.num_features == [32, 64, 128, 256]',
    'lightning': 'batch = torch.rand(2, 3, 45, 70), torch.randint(5, (2, 45, 70))\n'
    'trainer = lightning.Trainer(max_steps=1, accelerator="cpu", logger=False, enable_progress_bar=False)\n'
    'loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*batch))\n'
    'trainer.fit(Segmentor(), loader); assert trainer.global_step == 1',
    'peft': 'from peft import get_peft_model_state_dict as adapters; assert len(adapters(model)) == 12 * 4 * 2',
}


def test_every_package_of_the_page_has_a_check():
    assert RECIPES.keys() == CHECKS.keys()
    assert not re.search(
        r'needs (?!\w+, with which tests/adapters/test_recipes)', ''.join(re.findall('<!--.*?-->', PAGE.read_text()))
    )


@pytest.mark.parametrize('package', CHECKS)
def test_a_recipe_imports_this_package_first(package):
    """A recipe imports this package first. With a torchvision for a different torch, the opposite order fails."""
    imported = re.findall(r'^(?:import|from) (\w+)', ''.join(RECIPES[package]), re.M)
    others = [index for index, name in enumerate(imported) if re.fullmatch(STOPPED, name)]
    assert not others or 'swin_backbone' in imported[: others[0]], imported


@pytest.mark.toolboxes
@pytest.mark.peer
@pytest.mark.parametrize('package', CHECKS)
def test_a_recipe_runs(package, tmp_path, monkeypatch):
    if package != 'detectron2':
        require(package)
    if package == 'peft':
        pytest.importorskip('mmdet', reason='mmdet is not installed')
    if package == 'torchvision':
        give_torchvision_operators(monkeypatch)
    monkeypatch.chdir(tmp_path)
    code = compile(''.join(RECIPES[package]) + CHECKS[package], str(PAGE), 'exec')
    if package != 'detectron2':
        exec(code, {})
        return
    with detectron2_source():
        exec(code, {})
