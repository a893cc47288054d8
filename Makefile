# make install   set up .venv: torch, the OneDL stack, this package
# make test      set up if needed, run the tests; TESTS and ENV name other tests and environments
# make lint      pre-commit, which runs ruff, mypy, clang-format, clang-tidy and codespell
# make demo      set up if needed, train a small Mask R-CNN on made pictures, evaluate and draw it; TASK names another demo
# make docs      build the documentation's site into build/site; `.venv/bin/mkdocs serve --livereload` shows it while you write
# make docs-pictures   draw the pictures of docs/explanation/pictures.md, from the code and the two demos' checkpoints
# make wheels    the source distribution and a wheel for each platform, into dist/
# make notes TAG=v1.0.0   print the changelog's section of a release, whose tag must be that of swin_backbone/version.py
# make parity    train with mmdet's and mmseg's own Swin and with this one, and compare: an hour
# make benchmark-gpu   check and time the kernels on this GPU, as one table: needs CUDA
#
# TESTS selects tests:
#   slow        minutes: every config of the toolboxes with a Swin, the documentation's commands
#   faults      everything that provokes a fault; writes its figures into docs/measurements/reliability.md
#   nightly     the tests that draw their examples, with new examples; make test draws the same examples each time
#   native      the library's own test, a C++ program, by each instruction set that the processor or an emulator has
#   sanitize    this program and the compiled operators' tests, with AddressSanitizer and UBSan
# ENV selects an environment and its tests; make install ENV=... makes the environment alone:
#   peers       timm, transformers, peft and others, in .venv-peers
#   toolboxes   mmpretrain and mmrotate, in .venv
#   ray         Ray, in .venv
#   mmcv        mmcv's compiled operators, built in 10 to 20 minutes, in .venv-mmcv
#   openmmlab   OpenMMLab's own releases, in .venv-openmmlab
#   core        torch, numpy, safetensors and filelock alone, also with another torch: make test ENV=core TORCH=torch==2.11.0
#   wheel       the wheel of dist/ for this kind of machine, beside torch alone, without a compiler
# TASK selects a demo: det, seg, cls, or deploy, which exports the models of det and seg and runs them without torch
#
# Variables, on the command line:
#   PYTHON  the interpreter the environment is made from        make install PYTHON=python3.11
#   TORCH   what pip installs as torch, CUDA builds included    make install TORCH=torch==2.13.0
#   EXTRAS  further extras of setup.py                          make install EXTRAS=deploy,cls
#   MMCV    'compiled' builds mmcv's operators in 10 to 20 minutes; ours stand in for them otherwise
#   VENV    where the environment goes; one that is there already keeps its torch
PYTHON ?= python3
TORCH ?= torch==2.13.0
ENV ?= onedl
TASK ?= det

venv_onedl := .venv
venv_toolboxes := .venv
venv_ray := .venv
venv_peers := .venv-peers# mmpretrain does not import beside transformers 5
venv_mmcv := .venv-mmcv# make test compares with figures of mmcv's operators (tests/openmmlab/mmcv_ops/figures.npz)
venv_openmmlab := .venv-openmmlab# both stacks install the module mmcv
venv_core := .venv-core-$(subst =,,$(TORCH))
venv_wheel := .venv-wheel
VENV ?= $(or $(venv_$(ENV)),$(error ENV takes onedl, $(ENVS), got $(ENV)))
ENVS := peers, toolboxes, ray, mmcv, openmmlab, core, wheel

extras_toolboxes := cls,rotate
extras_peers := peers
extras_ray := ray
EXTRAS ?= $(extras_$(ENV))
MMCV ?= $(if $(filter mmcv,$(ENV)),compiled)
STACK := $(if $(filter openmmlab,$(ENV)),openmmlab,onedl)
CONSTRAINTS := constraints/$(STACK).txt

PIP := $(VENV)/bin/python -m pip --disable-pip-version-check
RUN := $(VENV)/bin/python
STAMP := $(VENV)/.installed
comma := ,
extra_stamps = $(addprefix $(STAMP)-,$(subst $(comma), ,$(1)))

.PHONY: install test lint demo docs docs-pictures wheels notes parity benchmark-gpu clean FORCE

# The last line compiles sources newer than the library, as after `git pull`. A wheel has its library.
install: $(STAMP) $(call extra_stamps,$(EXTRAS))
	$(if $(filter wheel,$(ENV)),,@$(RUN) setup.py --quiet build_ext --inplace)

# What the core needs beside torch, what compiles the library, and what tests
CORE := numpy safetensors filelock 'setuptools>=70.1' ninja pytest pytest-xdist hypothesis
ifneq ($(filter core wheel,$(ENV)),)
$(STAMP): FORCE
	test -x $(RUN) || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet '$(TORCH)' $(CORE)
	@touch $@ $(VENV)/constraints.txt
else
$(STAMP): setup.py $(CONSTRAINTS) tools/install.sh $(if $(MMCV),FORCE)
	@PYTHON='$(PYTHON)' TORCH='$(TORCH)' VENV='$(VENV)' STACK='$(STACK)' MMCV='$(MMCV)' bash tools/install.sh
	@touch $@
endif

FORCE: # MMCV=compiled may ask for another mmcv, TORCH for another torch

# `install` compiles the library.
$(STAMP)-%: setup.py $(CONSTRAINTS) | $(STAMP)
	@SWIN_BACKBONE_NATIVE=0 $(PIP) install --quiet --constraint $(VENV)/constraints.txt --no-build-isolation --editable '.[$*]'
	@$(RUN) -m swin_backbone info | grep 'torchvision.*for another torch' || true
	@touch $@

# Two processes with one thread each: with two threads each they would slow one another many times. Files run in the order
# of their names, because a file with few tests may take longest. Bytecode helps the dozens of tools that tests start.
IN_TWO := OMP_NUM_THREADS=1 $(RUN) -m pytest --numprocesses 2 --dist loadfile
tests_all = PYTHONDONTWRITEBYTECODE= $(IN_TWO) --no-loadscope-reorder
tests_slow = $(RUN) -m pytest -m slow
FAULTS := work_dirs/faults.json
tests_faults = $(IN_TWO) -m faults --faults-json=$(FAULTS) && \
	$(RUN) tests/helpers/faults.py $(FAULTS) docs/measurements/reliability.md
tests_nightly = $(IN_TWO) --hypothesis-profile nightly -m hypothesis
# NEON runs where zig (EXTRAS=wheels) and qemu-aarch64-static are, the library for Windows where zig and Wine are.
tests_native = $(RUN) -m pytest -m '' tests/kernels/native/test_unit.py
tests_sanitize = bash tests/kernels/native/sanitize.sh $(RUN)
tests_peers = $(RUN) -m pytest -m 'peer and not slow'
tests_toolboxes = $(RUN) -m pytest -m 'toolboxes and not slow'
tests_ray = $(RUN) -m pytest -m 'ray and not slow'
tests_mmcv = $(RUN) -m pytest tests/openmmlab/mmcv_ops
# Files that import the toolboxes are left out without the toolboxes: see tests/conftest.py.
tests_core = PYTHONPATH=. $(IN_TWO) --no-loadscope-reorder \
	$(addprefix tests/,test_without_toolboxes.py test_checks.py test_positions.py test_replace.py test_devices.py models checkpoints kernels adapters)
# The wheel as a user has it, without a compiler on the PATH. Without the library the tests would skip.
define LIBRARY_COMPUTES
import sys, torch
from swin_backbone.kernels.native.availability import find_reason_against_dtype
sys.exit(find_reason_against_dtype(torch.float32))
endef
export LIBRARY_COMPUTES
tests_wheel = $(PIP) install --quiet --no-deps --force-reinstall dist/*manylinux*_$$(uname -m).whl && \
	rm -rf build/test-wheel && mkdir -p build/test-wheel/csrc && cp csrc/swin.h csrc/build.py build/test-wheel/csrc && \
	cp -r tests benchmarks pyproject.toml build/test-wheel && cd build/test-wheel && \
	$(abspath $(RUN)) -c "$$LIBRARY_COMPUTES" && \
	PATH=$(abspath $(VENV))/bin OMP_NUM_THREADS=1 python -m pytest tests/kernels/native
TESTS ?= $(if $(tests_$(ENV)),$(ENV),all)

test: install
	$(or $(tests_$(TESTS)),$(error TESTS takes all, slow, faults, nightly, native, sanitize, got $(TESTS)))

# The source distribution makes all wheels, as others would make them. auditwheel checks the version of glibc in a name.
PLATFORMS := manylinux2014_x86_64 manylinux2014_aarch64 macosx_11_0_arm64 win_amd64
wheels: install $(STAMP)-wheels
	rm -rf dist
	$(RUN) setup.py --quiet sdist
	for platform in $(PLATFORMS); do \
		SWIN_BACKBONE_PLATFORM=$$platform $(PIP) wheel --quiet --no-deps --no-build-isolation --wheel-dir dist dist/*.tar.gz || exit 1; \
	done
	$(RUN) -m twine check --strict dist/*
	for wheel in dist/*manylinux*.whl; do $(RUN) -m auditwheel show $$wheel || exit 1; done

define NOTES
import re, runpy, sys
version = runpy.run_path('swin_backbone/version.py')['__version__']
section = re.search(rf'^## {re.escape(version)}$$(.+?)(?=^## |\Z)', open('CHANGELOG.md', encoding='utf-8').read(), re.M | re.S)
if sys.argv[1] != f'v{version}' or not section or not section[1].strip():
    sys.exit(f'swin_backbone/version.py has {version}: TAG takes v{version}, got {sys.argv[1]!r}, and CHANGELOG.md needs a section {version}')
print(section[1].strip())
endef
export NOTES
notes:
	@$(PYTHON) -c "$$NOTES" '$(TAG)'

lint: install
	PATH="$(abspath $(VENV))/bin:$$PATH" pre-commit run --all-files

SHAPES := data/shapes
$(SHAPES)/annotations/instances_val.json: tools/make_shapes_dataset.py | $(STAMP)
	$(RUN) tools/make_shapes_dataset.py $(SHAPES) --shape 256 --train 1000 --visible 0.75 --overwrite

CROPS := data/shapes-crops
$(CROPS)/annotations/crops_val.txt: tools/make_shapes_dataset.py | $(STAMP)
	$(RUN) tools/make_shapes_dataset.py $(CROPS) --crops --overwrite

# Of each demo: its config, its data, its folder in work_dirs/
DEMO_det := configs/demo/mask-rcnn_swin-nano_fpn_shapes.py
DEMO_seg := configs/demo/swin-nano_upernet_shapes.py
DEMO_cls := configs/demo/swin-nano_shapes-crops.py
WORK_det := work_dirs/demo
WORK_seg := work_dirs/demo-seg
WORK_cls := work_dirs/demo-cls
needs_cls := $(STAMP)-cls $(CROPS)/annotations/crops_val.txt
needs_deploy := $(STAMP)-deploy $(WORK_det)/last_checkpoint $(WORK_seg)/last_checkpoint
demo: install $(or $(needs_$(TASK)),$(SHAPES)/annotations/instances_val.json)
	$(or $(demo_$(TASK)),$(error TASK takes det, seg, cls or deploy, got $(TASK)))

train_demo = $(RUN) tools/train.py $(DEMO_$(1)) --work-dir $(WORK_$(1)) && \
	$(RUN) tools/test.py $(DEMO_$(1)) "$$(cat $(WORK_$(1))/last_checkpoint)" --work-dir $(WORK_$(1)) \
		--show-dir $(WORK_$(1))/pictures --overwrite
demo_det = $(call train_demo,det)
demo_seg = $(call train_demo,seg)
demo_cls = $(call train_demo,cls)
$(WORK_det)/last_checkpoint: | $(SHAPES)/annotations/instances_val.json
	$(demo_det)
$(WORK_seg)/last_checkpoint: | $(SHAPES)/annotations/instances_val.json
	$(demo_seg)

# Of each model: export, run in its own runtime, then the metric of the checkpoint and that of the exported folder.
DEPLOYED := work_dirs/demo-deploy
deploy_demo = $(RUN) tools/export.py $(DEMO_$(1)) "$$(cat $(WORK_$(1))/last_checkpoint)" --out-dir $(DEPLOYED)/$(2) \
		--pictures '$(SHAPES)/images/val/*0.png' --overwrite && \
	$(RUN) -I swin_backbone/workbench/export/runtime.py $(DEPLOYED)/$(2) $(SHAPES)/images/val/*0.png && \
	for model in "$$(cat $(WORK_$(1))/last_checkpoint)" $(DEPLOYED)/$(2); do \
		$(RUN) tools/test.py $(DEMO_$(1)) "$$model" --work-dir $(DEPLOYED) | grep $(3): || exit 1; \
	done
demo_deploy = $(call deploy_demo,det,mask-rcnn,mAP) && $(call deploy_demo,seg,upernet,mIoU)

# PARITY: further arguments of python -m benchmarks.parity, such as a config of your own.
PARITY := --overwrite
parity: install $(SHAPES)/annotations/instances_val.json
	$(RUN) -m benchmarks.parity --jobs 2 $(PARITY)

docs: install $(STAMP)-docs
	$(RUN) docs/write_api.py
	$(RUN) docs/write_options.py
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict

# Checkpoints of the demos are made first, unless they exist.
LOOK := $(RUN) tools/visualize.py
PICTURES := docs/images/pictures
DRAWN := --dpi 90 --overwrite
SHAPE := $(SHAPES)/images/val/000009.png
CKPT := $(WORK_det)/epoch_3.pth
CKPT_SEG := $(WORK_seg)/iter_2000.pth
docs-pictures: install $(WORK_det)/last_checkpoint $(WORK_seg)/last_checkpoint
	mkdir -p $(PICTURES)
	$(LOOK) windows --shape 75 100 $(DRAWN) --out $(PICTURES)/windows-plain.png
	$(LOOK) windows --shape 75 100 --shift $(DRAWN) --out $(PICTURES)/windows.png
	$(LOOK) windows --shape 75 100 --shift --mask-padding $(DRAWN) --out $(PICTURES)/mask-padding.png
	$(LOOK) masks --shape 75 100 --shift $(DRAWN) --out $(PICTURES)/masks.png
	$(LOOK) attention $(SHAPE) $(DEMO_det) $(CKPT) --point 150,135 $(DRAWN) --out $(PICTURES)/attention.png
	$(LOOK) features $(SHAPE) $(DEMO_det) $(CKPT) $(DRAWN) --out $(PICTURES)/features.png
	$(LOOK) cam $(SHAPE) $(DEMO_det) $(CKPT) --label square --stage 2 $(DRAWN) --out $(PICTURES)/cam.png
	$(LOOK) cam $(SHAPE) $(DEMO_seg) $(CKPT_SEG) --label square --stage 2 $(DRAWN) --out $(PICTURES)/cam-class.png
	$(LOOK) bias $(CKPT) --new-window 12 $(DRAWN) --out $(PICTURES)/bias.png
	$(RUN) tools/plot_log.py $(WORK_det) $(DRAWN) --out $(PICTURES)/curves.png
	$(RUN) -c 'import sys; from PIL import Image; [Image.open(f).convert("RGB").quantize(256, kmeans=3).save(f, optimize=True) \
		for f in sys.argv[1:]]' $(PICTURES)/*.png

# Whether the kernels are right on this GPU and what each part costs, as one table to paste into an issue.
FIGURES := work_dirs/benchmark
benchmark-gpu: install
	mkdir -p $(FIGURES)
	$(RUN) -m benchmarks.gpu --compile --json $(FIGURES)/gpu.json

clean:
	rm -rf build dist *.egg-info work_dirs .pytest_cache .ruff_cache .mypy_cache .hypothesis
