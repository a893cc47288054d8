# Everything, on CPUs:            docker build -t swin_backbone .
# The same, for NVIDIA GPUs:      docker build -t swin_backbone --build-arg TORCH_BUILD=cu130 .
# In it, with data of yours:      docker run --rm -it -v /data:/data swin_backbone bash
# GPUs, and memory for workers:   docker run --rm -it -v /data:/data --gpus all --ipc=host swin_backbone bash
FROM python:3.11-slim-bookworm

# A build of torch that https://download.pytorch.org/whl has; those for CUDA bring CUDA along
ARG TORCH_BUILD=cpu

# make and g++ build the compiled operators; torch.compile and Triton call g++ too. libgl1 and libglib2.0-0 are
# what OpenCV loads. Debian keeps one version of each package, so none is pinned.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ libgl1 libglib2.0-0 make \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/swin_backbone
COPY . .
RUN PIP_NO_CACHE_DIR=1 PIP_EXTRA_INDEX_URL="https://download.pytorch.org/whl/$TORCH_BUILD" \
    make install PYTHON=python3.11 TORCH="torch==2.13.0+$TORCH_BUILD"

ENV PATH=/opt/swin_backbone/.venv/bin:$PATH
CMD ["python", "-m", "swin_backbone", "info"]
