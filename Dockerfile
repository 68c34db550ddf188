# syntax=docker/dockerfile:1
# How to build and run it: docs/how-to/install.md. torch brings its own CUDA, so one image serves GPUs and CPUs.
FROM python:3.12-slim
# torch compiles layers with a C++ compiler.
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
# Empty takes torch from PyPI, whose build for Linux has CUDA.
ARG TORCH_INDEX=
RUN --mount=type=bind,target=/src cd /src && python3 -m venv /opt/gpas && /opt/gpas/bin/pip install --no-cache-dir \
    --constraint constraints.txt ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} '.[figures,export,downstream,postgres]'
# Any user may run it: what programs keep between runs lies in /cache, and a user without a name here has one.
RUN install -d -m 1777 /cache /work
ENV PATH=/opt/gpas/bin:$PATH HOME=/cache HF_HOME=/cache/huggingface USER=gpas \
    NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
WORKDIR /work
ENTRYPOINT ["gpas"]
CMD ["--help"]
