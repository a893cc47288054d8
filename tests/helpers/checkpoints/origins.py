"""Names and order of a Swin Transformer's weights in the origins, written by hand from the code of the origins.

A function takes the state_dict of a `SwinBackbone`, and returns the checkpoint of an origin's training script. The
functions use no tables of the package, so the tests compare independent code.
"""

import math

import torch

WINDOW = 7


def merged_by_columns(value):
    """Reorder merged channels from the order of `nn.Unfold` to x[0::2, 0::2], x[1::2, 0::2], ..."""
    channels = value.shape[-1] // 4
    unfolded_CHW = torch.arange(4 * channels).view(channels, 2, 2)  # position of neighbour (dy, dx) in unfold
    return value[..., torch.cat([unfolded_CHW[:, dy, dx] for dx in (0, 1) for dy in (0, 1)])]


def position_index(window=WINDOW):
    y, x = torch.meshgrid(torch.arange(window), torch.arange(window), indexing='ij')
    y, x = y.flatten(), x.flatten()
    return (y[:, None] - y + window - 1) * (2 * window - 1) + x[:, None] - x + window - 1


def without_output_norms(state):
    return {key: value for key, value in state.items() if not key.startswith('norm')}


def official_backbone(state):
    """Rename a backbone. The official detection and segmentation code saves equal names, with norm0 to norm3."""
    official = {}
    for key, value in state.items():
        if '.downsample.' in key:
            value = merged_by_columns(value)
        key = key.replace('stages.', 'layers.').replace('patch_embed.projection', 'patch_embed.proj')
        key = (
            key.replace('attn.w_msa.', 'attn.').replace('ffn.layers.0.0', 'mlp.fc1').replace('ffn.layers.1', 'mlp.fc2')
        )
        official[key] = value
        if key.endswith('relative_position_bias_table'):
            official[key.replace('_bias_table', '_index')] = position_index((math.isqrt(len(value)) + 1) // 2)
    official['layers.0.blocks.1.attn_mask'] = torch.zeros(4, 49, 49)
    return official


def classifier(state):
    width = last_width(state)
    return {
        'norm.weight': torch.rand(width), 'norm.bias': torch.rand(width),
        'head.weight': torch.rand(1000, width), 'head.bias': torch.rand(1000),
    }  # fmt: skip


def last_width(state):
    return state['stages.3.blocks.0.norm1.weight'].shape[0]


def official(state):
    return {'model': official_backbone(without_output_norms(state)) | classifier(state)}


def official_detector(state):
    backbone = {f'backbone.{key}': value for key, value in official_backbone(state).items()}
    return {'state_dict': {**backbone, 'neck.fpn.weight': torch.ones(2)}, 'meta': {'epoch': 12}, 'optimizer': {}}


def simmim(state):
    width = state['patch_embed.projection.weight'].shape[0]
    encoder = official_backbone(without_output_norms(state)) | {'mask_token': torch.rand(1, 1, width)}
    encoder |= {key: value for key, value in classifier(state).items() if key.startswith('norm')}
    decoder = {'decoder.0.weight': torch.rand(8, last_width(state), 1, 1), 'decoder.0.bias': torch.rand(8)}
    return {'model': {**{f'encoder.{key}': value for key, value in encoder.items()}, **decoder}, 'epoch': 99}


def mmdet_backbone(state):
    tables = [key for key in state if key.endswith('relative_position_bias_table')]
    return state | {key.replace('_bias_table', '_index'): position_index() for key in tables}


def mmdet_detector(state):
    backbone = {f'backbone.{key}': value for key, value in mmdet_backbone(state).items()}
    return {'state_dict': {**backbone, 'neck.fpn.weight': torch.ones(2)}, 'meta': {'epoch': 12}}


def averaged(state):
    """Return the state_dict of mmengine's AveragedModel, which has the names of a data-parallel wrapper."""
    weights = {f'module.{key}': value for key, value in mmdet_detector(state)['state_dict'].items()}
    return {**weights, 'steps': torch.tensor(100)}


def teacher_and_student(state):
    """Return a semi-supervised detector. The teacher is the student's moving average."""
    detector = mmdet_detector(state)['state_dict']
    student = {f'student.{key}': torch.zeros_like(value) for key, value in detector.items()}
    return {'state_dict': {**student, **{f'teacher.{key}': value for key, value in detector.items()}}}


def timm_ema(state):
    """Return a checkpoint of timm's training script: a model and the moving average."""
    return {'state_dict': {key: torch.zeros_like(v) for key, v in timm(state).items()}, 'state_dict_ema': timm(state)}


def mmpretrain(state):
    weights = {f'backbone.{key}': value for key, value in mmdet_backbone(without_output_norms(state)).items()}
    renamed = {'norm': 'backbone.norm3', 'head': 'head.fc'}
    for key, value in classifier(state).items():
        owner, leaf = key.split('.')
        weights[f'{renamed[owner]}.{leaf}'] = value
    return {'state_dict': weights, 'meta': {}}


def timm(state):
    """Return weights of timm 0.9 and later. A stage begins with the merging."""
    renamed = {}
    for key, value in official(state)['model'].items():
        if key.endswith(('_index', '_mask')):
            continue  # not persistent
        parts = key.split('.')
        if parts[2:3] == ['downsample']:
            parts[1] = str(int(parts[1]) + 1)
        renamed['.'.join(parts).replace('head.', 'head.fc.')] = value
    return renamed


def timm_old(state):
    """Return weights of timm before 0.9, with the names of microsoft/Swin-Transformer."""
    return official(state)['model']


def timm_features(state):
    return {
        key.replace('layers.', 'layers_', 1): v
        for key, v in timm(state).items()
        if not key.startswith(('norm', 'head'))
    }


def torchvision(state):
    """Number the parts in sequence: patch embedding, blocks of stage 0, merging, blocks of stage 1, ..."""
    renamed = {}
    for key, value in official(state)['model'].items():
        parts = key.split('.')
        if key.endswith('attn_mask'):
            continue
        if parts[0] == 'layers':
            stage = int(parts[1])
            parts[:3] = (
                ['features', str(2 * stage + 2)] if parts[2] == 'downsample' else ['features', str(2 * stage + 1)]
            )
        key = '.'.join(parts).replace('mlp.fc1', 'mlp.0').replace('mlp.fc2', 'mlp.3')
        key = key.replace('patch_embed.proj', 'features.0.0').replace('patch_embed.norm', 'features.0.2')
        renamed[key] = value.flatten() if key.endswith('_index') else value
    return renamed


def torchvision_v2(state):
    """Return the weights of torchvision's Swin V2. Its bias of the key is never used."""
    renamed = {}
    for key, value in without_output_norms(state).items():
        parts = key.split('.')
        if parts[2:3] == ['downsample']:  # a stage begins with the merging
            parts[:3] = ['features', str(2 * int(parts[1]))]
            value = merged_by_columns(value) if parts[-2] == 'reduction' else value
        elif parts[0] == 'stages':
            parts[:3] = ['features', str(2 * int(parts[1]) + 1)]
        name = '.'.join(parts).replace('ffn.layers.0.0', 'mlp.0').replace('ffn.layers.1', 'mlp.3')
        name = name.replace('patch_embed.projection', 'features.0.0').replace('patch_embed.norm', 'features.0.2')
        name = name.replace('attn.w_msa.', 'attn.')
        if key.endswith('q_bias'):
            bias = value, torch.ones_like(value), state[key.replace('q_bias', 'v_bias')]
            renamed[name.replace('q_bias', 'qkv.bias')] = torch.cat(bias)
        elif not key.endswith('v_bias'):
            renamed[name] = value
    return renamed


def simmim_v2(state):
    """Return the weights of SimMIM's Swin V2, which calls the MLP of the position bias `rpe_mlp`."""
    renamed = {}
    for key, value in without_output_norms(state).items():
        parts = key.split('.')
        if parts[2:3] == ['downsample']:  # a stage ends with the merging
            parts[1] = str(int(parts[1]) - 1)
            value = merged_by_columns(value) if parts[-2] == 'reduction' else value
        name = '.'.join(parts).replace('stages.', 'layers.').replace('patch_embed.projection', 'patch_embed.proj')
        name = name.replace('attn.w_msa.', 'attn.').replace('cpb_mlp', 'rpe_mlp')
        renamed[f'encoder.{name.replace("ffn.layers.0.0", "mlp.fc1").replace("ffn.layers.1", "mlp.fc2")}'] = value
    return {
        'model': {**renamed, 'encoder.mask_token': torch.rand(1, 1, 32), 'decoder.0.weight': torch.rand(8, 256, 1, 1)}
    }


def hugging_face(state):
    """Return the weights of files on the Hub, and of files from transformers."""
    renamed = {}
    replacements = (
        ('layers.', 'encoder.layers.'), ('patch_embed.proj', 'embeddings.patch_embeddings.projection'),
        ('patch_embed.norm', 'embeddings.norm'), ('absolute_pos_embed', 'embeddings.position_embeddings'),
        ('attn.proj.', 'attention.output.dense.'), ('attn.', 'attention.self.'),
        ('.norm1', '.layernorm_before'), ('.norm2', '.layernorm_after'),
        ('mlp.fc1', 'intermediate.dense'), ('mlp.fc2', 'output.dense'),
    )  # fmt: skip
    for key, value in official(state)['model'].items():
        if key.endswith('attn_mask'):
            continue
        if key.startswith('head.'):
            renamed[key.replace('head', 'classifier')] = value
            continue
        if key.startswith('norm.'):
            renamed[key.replace('norm', 'swin.layernorm')] = value
            continue
        for old, new in replacements:
            key = key.replace(old, new)
        if '.qkv.' in key:
            for name, part in zip(('query', 'key', 'value'), value.chunk(3)):
                renamed['swin.' + key.replace('qkv', name)] = part
        else:
            renamed['swin.' + key] = value
    return renamed


def hugging_face_backbone(state):
    """Return weights of SwinBackbone in transformers before release 5: no prefix, with output norms."""
    weights = {
        key.removeprefix('swin.'): value
        for key, value in hugging_face(state).items()
        if not key.startswith(('classifier', 'swin.layernorm'))
    }
    for stage in range(4):
        for leaf in ('weight', 'bias'):
            weights[f'hidden_states_norms.stage{stage + 1}.{leaf}'] = state[f'norm{stage}.{leaf}']
    return weights


def maskformer(state):
    """Return the weights of a MaskFormer of transformers, whose MaskFormerSwinBackbone has a model inside."""
    backbone = {}
    for key, value in hugging_face_backbone(state).items():
        norm = key.startswith('hidden_states_norms.stage')
        stage = int(key.split('.')[1].removeprefix('stage')) - 1 if norm else None
        backbone[f'hidden_states_norms.{stage}.{key.split(".")[2]}' if norm else f'model.{key}'] = value
    before = 'model.pixel_level_module.encoder.'
    return {**{before + key: value for key, value in backbone.items()}, 'class_predictor.bias': torch.ones(3)}


def hugging_face_in_memory(state):
    """Return weights with the parameter names of transformers 5. Files of transformers 5 keep the old names."""
    renamed = {}
    replacements = (
        ('attention.self.query', 'attention.q_proj'), ('attention.self.key', 'attention.k_proj'),
        ('attention.self.value', 'attention.v_proj'), ('attention.output.dense', 'attention.o_proj'),
        ('attention.self.relative', 'attention.relative_position_bias.relative'),
        ('intermediate.dense', 'mlp.fc1'), ('output.dense', 'mlp.fc2'),
    )  # fmt: skip
    for key, value in hugging_face(state).items():
        if key.endswith('_index'):
            continue
        for old, new in replacements:
            key = key.replace(old, new)
        renamed[key] = value
    return renamed


# name: (function, origin in the report, True with output norms)
ORIGINS = {
    'plain': (dict, 'mmdet or mmseg', True),
    'official': (official, 'microsoft/Swin-Transformer', False),
    'official_detector': (official_detector, "microsoft/Swin-Transformer, prefix 'backbone.'", True),
    'simmim': (simmim, "microsoft/Swin-Transformer, prefix 'encoder.'", False),
    'mmdet_detector': (mmdet_detector, "mmdet or mmseg, prefix 'backbone.'", True),
    'averaged': (averaged, "mmdet or mmseg, prefix 'backbone.'", True),
    'teacher_and_student': (teacher_and_student, "mmdet or mmseg, prefix 'teacher.backbone.'", True),
    'timm_ema': (timm_ema, 'timm', False),
    'mmpretrain': (mmpretrain, "mmpretrain, prefix 'backbone.'", False),
    'timm': (timm, 'timm', False),
    'timm_old': (timm_old, 'microsoft/Swin-Transformer', False),
    'timm_features': (timm_features, 'timm', False),
    'torchvision': (torchvision, 'torchvision', False),
    'hugging_face': (hugging_face, 'Hugging Face', False),
    'hugging_face_backbone': (hugging_face_backbone, 'Hugging Face', True),
    'hugging_face_in_memory': (hugging_face_in_memory, 'Hugging Face', False),
    'maskformer': (maskformer, "Hugging Face, prefix 'model.pixel_level_module.encoder.'", True),
}
