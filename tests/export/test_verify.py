"""What verification calls equal."""

from types import SimpleNamespace

import numpy as np
import pytest

from swin_backbone.export.verify import compare, verify_results


@pytest.mark.parametrize(('runner_up', 'share'), [(9.999999, 1.0), (9.99, 0.75)])
def test_a_label_that_ties_in_pytorch_is_equal(runner_up, share):
    logits = np.zeros((3, 2, 2), np.float32)
    logits[1], logits[2, 0, 0] = 10, runner_up
    wanted = dict(labels=logits.argmax(0), logits=logits)
    got = wanted['labels'].astype(np.uint8)
    assert compare(dict(labels=got), wanted) == dict(equal_labels=1.0)
    got[0, 0] = 2
    assert compare(dict(labels=got), wanted) == dict(equal_labels=share)
    got[0, 0] = 0
    assert compare(dict(labels=got), wanted) == dict(equal_labels=0.75)


def test_labels_of_one_logit_are_compared_alone():
    wanted = dict(labels=np.array([[0, 1]]), logits=np.array([[[-1.0, 1.0]]]))
    assert compare(dict(labels=np.array([[1, 1]])), wanted) == dict(equal_labels=0.5)


def test_pictures_of_a_batch_that_agree_are_one_line():
    truth = dict(labels=np.zeros((2, 2), np.int64))
    info = dict(limits={}, inputs=[dict(shape=['batch', 3, 'height', 'width'])])
    model = SimpleNamespace(info=info, predict=lambda pictures, batch: [truth] * len(pictures))
    figures = verify_results(model, lambda picture: truth, [np.zeros((2, 2, 3), np.uint8)], 'fp32')
    assert [figure['batch'] for figure in figures] == [1, 2]
