# syntax=docker/dockerfile:1
#   docker build -t gpas .                                                   on the CPU
#   docker build -t gpas --build-arg RUNTIME=nvidia/cuda:13.0.1-runtime-ubuntu24.04 --build-arg TORCH_INDEX= .
#   docker run --rm -v "$PWD:/work" gpas run grid quickstart --yes
ARG RUNTIME=python:3.12-slim

FROM python:3.12-slim AS wheel
WORKDIR /src
RUN pip install --no-cache-dir build
COPY . .
RUN python -m build --wheel --outdir /dist

FROM ${RUNTIME} AS runtime
# Empty takes torch's CUDA build from the default index.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
# Layers are compiled where a C++ compiler and Python's headers are.
RUN apt-get update && apt-get install -y --no-install-recommends g++ \
    $(python3 -m venv --help >/dev/null 2>&1 || echo python3 python3-dev python3-venv) && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/gpas
ENV PATH=/opt/gpas/bin:$PATH
COPY constraints.txt /tmp/constraints.txt
RUN pip install --no-cache-dir --constraint /tmp/constraints.txt \
        ${TORCH_INDEX:+--extra-index-url ${TORCH_INDEX}} torch
COPY --from=wheel /dist/*.whl /tmp/
RUN pip install --no-cache-dir --constraint /tmp/constraints.txt /tmp/*.whl && rm /tmp/*.whl /tmp/constraints.txt
RUN useradd --create-home --uid 1000 gpas
USER gpas
WORKDIR /work
ENTRYPOINT ["gpas"]
CMD ["--help"]
