# make install   set up .venv: torch, the OneDL stack, this package
# make test      set up if needed, run the tests
# make test-slow the tests that take minutes
# make test-faults  everything that provokes a fault; writes its figures into docs/measurements/reliability.md
# make test-nightly  the tests that draw their examples, with other examples than make test, which draws the same each time
# make test-native  the library's own test, a C++ program, by each instruction set that the processor or an emulator has
# make test-sanitize  the compiled operators' tests, with AddressSanitizer and UBSan
# make test-toolboxes  what needs mmpretrain and mmrotate, which it installs
# make test-peers  what needs timm, transformers, peft and others, which it installs into .venv-peers
# make test-mmcv our operators beside mmcv's compiled ones, which it builds in 10 to 20 minutes
# make test-lite the backbones, checkpoints and export without mmcv's operators, which pip fetches
# make test-torch    the backbones' tests on another torch: make test-torch TORCH=torch==2.11.0
# make wheels    the source distribution and a wheel for each platform, into dist/
# make test-wheel  the tests of the library as that wheel brings it, in an environment of its own without a compiler
# make demo      set up if needed, train a small Mask R-CNN on made pictures, evaluate and draw it
# make demo-seg  the same with UPerNet
# make demo-cls  the same with a classifier
# make demo-deploy  what the two demos trained, exported with free sizes and run without torch
# make parity    train with mmdet's and mmseg's own Swin and with this one, and compare: an hour
# make docs      build the documentation's site into build/site; make docs-serve shows it while you write
# make docs-pictures   draw the pictures of docs/explanation/pictures.md, from the code and the two demos' checkpoints
# make lint      pre-commit, which runs ruff, mypy, clang-format, clang-tidy and codespell
# make benchmark-gpu   whether the kernels are right on this GPU and what they cost, as one table: needs CUDA
#
# Variables, on the command line:
#   PYTHON  the interpreter the environment is made from        make install PYTHON=python3.11
#   TORCH   what pip installs as torch, CUDA builds included    make install TORCH=torch==2.13.0
#   MMCV    'compiled' builds mmcv's operators in 10 to 20 minutes; ours stand in for them otherwise
#   VENV    where the environment goes; one that is there already keeps its torch
PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV ?= .venv
MMCV ?=
STACK := onedl
CONSTRAINTS := constraints/$(STACK).txt

PIP := $(VENV)/bin/python -m pip --disable-pip-version-check
RUN := $(VENV)/bin/python
STAMP := $(VENV)/.installed

.PHONY: install install-deploy install-cls install-rotate install-peers install-ray test test-slow test-faults \
	test-nightly test-sanitize test-lite test-mmcv test-toolboxes test-peers test-ray test-torch test-openmmlab demo demo-seg \
	demo-cls demo-deploy docs docs-serve docs-pictures parity benchmark-gpu lint clean install-wheels wheels \
	test-wheel test-native

install: $(STAMP)

$(STAMP): setup.py $(CONSTRAINTS) tools/install.sh $(if $(MMCV),FORCE)
	@PYTHON='$(PYTHON)' TORCH='$(TORCH)' VENV='$(VENV)' STACK='$(STACK)' MMCV='$(MMCV)' bash tools/install.sh
	@touch $@

FORCE: # MMCV=compiled may ask for another mmcv than the one that is there

# No parts of `make install`: what tools/export.py needs, which is 400 MB; mmpretrain, 45 MB, and mmrotate, 30 MB, with
# torchvision, which nothing else here needs; timm, transformers and the other frameworks of adapters. The operators that `make install` compiled stay as they are.
install-deploy install-cls install-rotate install-peers install-ray install-wheels: install-%: $(VENV)/.installed-%

$(VENV)/.installed-%: setup.py $(CONSTRAINTS) | install
	@SWIN_BACKBONE_NATIVE=0 $(PIP) install --quiet --constraint $(VENV)/constraints.txt --no-build-isolation --editable '.[$*]'
	@touch $@

# Two processes with a thread each: with two threads each they would slow one another many times. They take files in the
# order of their names: those with few tests may take longest. Dozens of tests start a tool in a process of its own, which
# without bytecode compiles the package anew.
test: install
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(RUN) -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

test-slow: install
	$(RUN) -m pytest -m slow

FAULTS := work_dirs/faults.json
test-faults: install
	OMP_NUM_THREADS=1 $(RUN) -m pytest --numprocesses 2 --dist loadfile -m faults --faults-json=$(FAULTS)
	$(RUN) tests/helpers/faults.py $(FAULTS) docs/measurements/reliability.md

# Hypothesis marks the tests that it draws examples for.
test-nightly: install
	OMP_NUM_THREADS=1 $(RUN) -m pytest --numprocesses 2 --hypothesis-profile nightly -m hypothesis

# NEON runs where zig (make install-wheels) and qemu-aarch64-static are, the library for Windows where zig and Wine are, and
# what is written for AMX with loops in its place.
test-native: install
	$(RUN) -m pytest -m '' tests/backends/native/test_unit.py

test-sanitize: install
	bash tests/backends/native/sanitize.sh $(RUN)

test-toolboxes: install-cls install-rotate
	$(RUN) -m pytest -m 'toolboxes and not slow'

# In an environment of its own: mmpretrain does not import beside transformers 5.
test-peers:
	$(MAKE) install-peers VENV=.venv-peers
	.venv-peers/bin/python -m pytest -m 'peer and not slow'

test-ray: install-ray
	$(RUN) -m pytest -m 'ray and not slow'

# In an environment of its own: make test compares ours with figures that mmcv's gave (tests/mmcv_ops/figures.npz).
test-mmcv:
	$(MAKE) install VENV=.venv-mmcv MMCV=compiled
	.venv-mmcv/bin/python -m pytest tests/mmcv_ops

test-lite: install
	$(RUN) -m pytest -m '' tests/install/test_lite.py

# The same on OpenMMLab's own releases, in an environment of its own: both stacks install the module mmcv.
test-openmmlab:
	$(MAKE) test STACK=openmmlab VENV=.venv-openmmlab

# All from the source distribution, as others would make them. The version of glibc that a wheel's name promises is checked.
PLATFORMS := manylinux2014_x86_64 manylinux2014_aarch64 macosx_11_0_arm64 win_amd64
wheels: install-wheels
	rm -rf dist
	$(RUN) setup.py --quiet sdist
	for platform in $(PLATFORMS); do \
		SWIN_BACKBONE_PLATFORM=$$platform $(PIP) wheel --quiet --no-deps --no-build-isolation --wheel-dir dist dist/*.tar.gz || exit 1; \
	done
	$(RUN) -m twine check --strict dist/*
	for wheel in dist/*manylinux*.whl; do $(RUN) -m auditwheel show $$wheel || exit 1; done

# The wheel of this kind of machine as a user has it: beside torch alone, and without a compiler on the PATH.
WHEEL_VENV := .venv-wheel
WHEEL_TESTS := tests/backends/native
define LIBRARY_COMPUTES
import sys, torch
from swin_backbone.backends.native.availability import why_not_in
sys.exit(why_not_in(torch.float32))
endef
export LIBRARY_COMPUTES # without it the tests below would skip
test-wheel:
	test -x $(WHEEL_VENV)/bin/python || $(PYTHON) -m venv $(WHEEL_VENV)
	$(WHEEL_VENV)/bin/python -m pip --disable-pip-version-check install --quiet '$(TORCH)' $(LITE)
	$(WHEEL_VENV)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --force-reinstall dist/*manylinux*_$$(uname -m).whl
	rm -rf build/test-wheel && mkdir -p build/test-wheel/csrc && cp csrc/swin.h build/test-wheel/csrc
	cp -r tests benchmarks pyproject.toml build/test-wheel
	cd build/test-wheel && $(abspath $(WHEEL_VENV))/bin/python -c "$$LIBRARY_COMPUTES"
	cd build/test-wheel && PATH=$(abspath $(WHEEL_VENV))/bin OMP_NUM_THREADS=1 python -m pytest $(WHEEL_TESTS)

lint: install
	PATH="$(abspath $(VENV))/bin:$$PATH" pre-commit run --all-files

SHAPES := data/shapes
$(SHAPES)/annotations/instances_val.json: tools/make_shapes_dataset.py | install
	$(RUN) tools/make_shapes_dataset.py $(SHAPES) --size 256 --train 1000 --visible 0.75

CROPS := data/shapes-crops
$(CROPS)/annotations/crops_val.txt: tools/make_shapes_dataset.py | install
	$(RUN) tools/make_shapes_dataset.py $(CROPS) --crops

DEMO := configs/demo/mask-rcnn_swin-nano_fpn_shapes.py
demo: install $(SHAPES)/annotations/instances_val.json
	$(RUN) tools/train.py $(DEMO) --work-dir work_dirs/demo
	$(RUN) tools/test.py $(DEMO) "$$(cat work_dirs/demo/last_checkpoint)" --work-dir work_dirs/demo \
		--show-dir work_dirs/demo/pictures

DEMO_SEG := configs/demo/swin-nano_upernet_shapes.py
demo-seg: install $(SHAPES)/annotations/instances_val.json
	$(RUN) tools/train.py $(DEMO_SEG) --work-dir work_dirs/demo-seg
	$(RUN) tools/test.py $(DEMO_SEG) "$$(cat work_dirs/demo-seg/last_checkpoint)" --work-dir work_dirs/demo-seg \
		--show-dir work_dirs/demo-seg/pictures

DEMO_CLS := configs/demo/swin-nano_shapes-crops.py
demo-cls: install-cls $(CROPS)/annotations/crops_val.txt
	$(RUN) tools/train.py $(DEMO_CLS) --work-dir work_dirs/demo-cls
	$(RUN) tools/test.py $(DEMO_CLS) "$$(cat work_dirs/demo-cls/last_checkpoint)" --work-dir work_dirs/demo-cls \
		--show-dir work_dirs/demo-cls/pictures

# DIR of each: the metric of the checkpoint in PyTorch, then of the exported folder in its own runtime.
DEPLOYED := work_dirs/demo-deploy
demo-deploy: install-deploy
	@for demo in demo demo-seg; do [ -f work_dirs/$$demo/last_checkpoint ] || $(MAKE) $$demo || exit 1; done
	$(RUN) tools/export.py $(DEMO) "$$(cat work_dirs/demo/last_checkpoint)" --out $(DEPLOYED)/mask-rcnn \
		--pictures '$(SHAPES)/images/val/*0.png'
	$(RUN) tools/export.py $(DEMO_SEG) "$$(cat work_dirs/demo-seg/last_checkpoint)" --out $(DEPLOYED)/upernet \
		--pictures '$(SHAPES)/images/val/*0.png'
	$(RUN) -I swin_backbone/export/runtime.py $(DEPLOYED)/mask-rcnn $(SHAPES)/images/val/*0.png
	$(RUN) -I swin_backbone/export/runtime.py $(DEPLOYED)/upernet $(SHAPES)/images/val/*0.png
	$(RUN) tools/test.py $(DEMO) "$$(cat work_dirs/demo/last_checkpoint)" --work-dir $(DEPLOYED) | grep mAP:
	$(RUN) tools/test.py $(DEMO) $(DEPLOYED)/mask-rcnn --work-dir $(DEPLOYED) | grep mAP:
	$(RUN) tools/test.py $(DEMO_SEG) "$$(cat work_dirs/demo-seg/last_checkpoint)" --work-dir $(DEPLOYED) | grep mIoU:
	$(RUN) tools/test.py $(DEMO_SEG) $(DEPLOYED)/upernet --work-dir $(DEPLOYED) | grep mIoU:

# PARITY: further arguments of python -m benchmarks.parity, as a config of one's own.
PARITY := --overwrite
parity: install $(SHAPES)/annotations/instances_val.json
	$(RUN) -m benchmarks.parity --jobs 2 $(PARITY)

# The themes' own advertisement is no warning of ours.
docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict

docs-serve: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs serve --livereload

# The demos are trained first, unless they are there already.
LOOK := $(RUN) tools/visualize.py
PICTURES := docs/images/pictures
DRAWN := --dpi 90 --overwrite
SHAPE := $(SHAPES)/images/val/000009.png
CKPT := work_dirs/demo/epoch_3.pth
CKPT_SEG := work_dirs/demo-seg/iter_2000.pth
docs-pictures: install $(SHAPES)/annotations/instances_val.json
	test -f $(CKPT) || $(MAKE) demo
	test -f $(CKPT_SEG) || $(MAKE) demo-seg
	mkdir -p $(PICTURES)
	$(LOOK) windows --size 75 100 $(DRAWN) --out $(PICTURES)/windows-plain.png
	$(LOOK) windows --size 75 100 --shift $(DRAWN) --out $(PICTURES)/windows.png
	$(LOOK) windows --size 75 100 --shift --mask-padding $(DRAWN) --out $(PICTURES)/mask-padding.png
	$(LOOK) masks --size 75 100 --shift $(DRAWN) --out $(PICTURES)/masks.png
	$(LOOK) attention $(SHAPE) $(DEMO) $(CKPT) --at 150,135 $(DRAWN) --out $(PICTURES)/attention.png
	$(LOOK) features $(SHAPE) $(DEMO) $(CKPT) $(DRAWN) --out $(PICTURES)/features.png
	$(LOOK) cam $(SHAPE) $(DEMO) $(CKPT) --label square --stage 2 $(DRAWN) --out $(PICTURES)/cam.png
	$(LOOK) cam $(SHAPE) $(DEMO_SEG) $(CKPT_SEG) --label square --stage 2 $(DRAWN) --out $(PICTURES)/cam-class.png
	$(LOOK) bias $(CKPT) --to 12 $(DRAWN) --out $(PICTURES)/bias.png
	$(RUN) tools/plot_log.py work_dirs/demo $(DRAWN) --out $(PICTURES)/curves.png
	$(RUN) -c 'import sys; from PIL import Image; [Image.open(f).convert("RGB").quantize(256, kmeans=3).save(f, optimize=True) \
		for f in sys.argv[1:]]' $(PICTURES)/*.png

# Whether the kernels are right on this GPU and what each part costs, as one table to paste into an issue.
FIGURES := work_dirs/benchmark
benchmark-gpu: install
	mkdir -p $(FIGURES)
	$(RUN) -m benchmarks.gpu.report --compile --tune --tools \
		--detector configs/mask_rcnn/mask-rcnn_swin-t-p4-w7_fpn_1x_coco.py --json $(FIGURES)/gpu.json

# The backbones' tests on another torch, in an environment of its own: make test-torch TORCH=torch==2.11.0
OTHER := .venv-$(subst =,,$(TORCH))
LITE := mmengine==0.10.7 mmcv-lite==2.1.0 numpy 'setuptools<81' safetensors filelock tqdm rich pytest hypothesis matplotlib
OTHER_TESTS := $(addprefix tests/,models/modes/test_modes.py models/test_swin.py windows/test_windows.py \
	backends/reference/test_reference.py backends/triton/test_check.py backends/test_sdpa.py backends/test_all_backends.py)
test-torch:
	test -x $(OTHER)/bin/python || $(PYTHON) -m venv $(OTHER)
	$(OTHER)/bin/python -m pip --disable-pip-version-check install --quiet '$(TORCH)' $(LITE)
	PYTHONPATH=. OMP_NUM_THREADS=1 $(OTHER)/bin/python -m pytest $(OTHER_TESTS)

clean:
	rm -rf build dist *.egg-info work_dirs .pytest_cache .ruff_cache .mypy_cache .hypothesis
