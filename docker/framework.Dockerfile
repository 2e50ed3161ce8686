# An image for jobs of one framework: the framework, the example's packages, and Trainmaster with its command, so that
# `trainmaster run job.yaml` works in it as well.
#
#   docker build -f docker/framework.Dockerfile --build-arg FRAMEWORK=jax -t registry.example.com/team/jax:1.0 .
#
# FRAMEWORK is the name of a file in tests/frameworks/requirements, without .txt. BASE is any image with Python 3.11 or
# newer and pip, or one with apt that Python is put into (a CUDA base on Ubuntu 24.04). WITH holds further words for pip:
# requirements such as "jax[cuda13]", or options such as "--extra-index-url ...".
ARG BASE=python:3.12-slim

FROM ${BASE} AS framework
RUN command -v python3 > /dev/null || { apt-get update \
 && apt-get install --yes --no-install-recommends python3 python3-pip && rm -rf /var/lib/apt/lists/*; } \
 && { command -v python > /dev/null || ln -s "$(command -v python3)" /usr/local/bin/python; }
COPY constraints.txt pyproject.toml /src/
COPY docker/compile.py docker/framework.py /src/docker/
COPY tests/frameworks/requirements /src/tests/frameworks/requirements/
ARG FRAMEWORK=
ARG WITH=
RUN export PIP_BREAK_SYSTEM_PACKAGES=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore && cd /src \
 && python3 docker/framework.py requirements "${FRAMEWORK}" > requirements.txt \
 && python3 -m pip install --no-compile -c constraints.txt -r requirements.txt ${WITH} \
 && python3 docker/compile.py "$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" \
 && cd / && rm -r /src

FROM framework AS build
ENV PIP_BREAK_SYSTEM_PACKAGES=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
COPY constraints.txt pyproject.toml ./
COPY docker/compile.py docker/framework.py docker/
COPY tests/frameworks/requirements tests/frameworks/requirements
ARG FRAMEWORK=
# What is published as source alone is built here, so that no compiler gets into the image.
RUN mkdir /installed && case "${FRAMEWORK}" in deepspeed|horovod|horovod-tensorflow) apt-get update \
 && apt-get install --yes --no-install-recommends g++ make $(python3 docker/framework.py headers) \
 && python3 docker/framework.py build "${FRAMEWORK}" /installed ;; esac
RUN python3 -m pip install --no-compile -c constraints.txt hatchling
COPY README.md LICENSE ./
COPY manifests/examples manifests/examples
COPY operator operator
COPY trainer trainer
RUN python3 -m pip install --no-compile --no-deps --no-build-isolation --root /installed . \
 && python3 docker/compile.py /installed /installed

FROM framework AS image
# Group 0 may do what the user may: OpenShift runs an image as a user of its own choice, always in that group.
RUN useradd --uid 65532 --no-log-init --create-home --shell /usr/sbin/nologin trainmaster \
 && chgrp -R 0 /home/trainmaster && chmod -R g=u /home/trainmaster
COPY --from=build /installed/ /
ENV HOME=/home/trainmaster USER=trainmaster PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /home/trainmaster
USER 65532:65532
