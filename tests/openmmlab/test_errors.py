"""Errors as sentences."""

import runpy

import pytest

from swin_backbone.openmmlab.errors import sentence_of


@pytest.mark.parametrize(('package', 'says'), [('mmpretrain', "pip install 'transformers<5'"), ('mine', 'NoneType')])
def test_a_class_without_a_base_in_mmpretrain_is_a_transformers_that_it_does_not_know(package, says, tmp_path):
    file = tmp_path / package / 'models' / 'language_model.py'
    file.parent.mkdir(parents=True)
    file.write_text('PreTrainedModel = None\nclass Bert(PreTrainedModel):\n    pass\n')
    with pytest.raises(TypeError) as caught:
        runpy.run_path(str(file))
    assert says in sentence_of(caught.value)
    assert ('transformers' in sentence_of(caught.value)) == (package == 'mmpretrain')
