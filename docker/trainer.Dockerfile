# The trainer: what runs in a job's pods unless the job names an image of its own. It can run jobs without a cluster, too:
# `docker run -p 9090:9090 -v $PWD/runs:/runs trainmaster/trainer:0.1.0 demo`, or `trainmaster run job.yaml` in it.
#
#   docker build -f docker/trainer.Dockerfile -t trainmaster/trainer:0.1.0 .
#
# BASE is any image with Python 3.11 or newer and pip, or one with apt that Python is put into (a CUDA base on
# Ubuntu 24.04). TORCH is what pip gets: "torch" is the pinned version with the CUDA libraries that it asks for;
# a requirement with options chooses another ("torch --extra-index-url ..."); "" keeps the torch that the base brings.
ARG BASE=python:3.12-slim

FROM ${BASE} AS torch
RUN command -v python3 > /dev/null || { apt-get update \
 && apt-get install --yes --no-install-recommends python3 python3-pip && rm -rf /var/lib/apt/lists/*; }
COPY constraints.txt docker/compile.py /tmp/
ARG TORCH=torch
# The pins of torch and of its libraries go together: another version brings its own.
RUN export PIP_BREAK_SYSTEM_PACKAGES=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore && cd /tmp \
 && case "${TORCH}" in torch|"torch "*) ;; *) sed -i -E '/^(torch|triton|nvidia-|cuda-)/d' constraints.txt ;; esac \
 && if [ -n "${TORCH}" ]; then python3 -m pip install --no-compile -c constraints.txt isal numpy safetensors ${TORCH} \
 && python3 compile.py "$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"; fi \
 && rm constraints.txt compile.py

FROM torch AS build
ENV PIP_BREAK_SYSTEM_PACKAGES=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
COPY constraints.txt pyproject.toml docker/compile.py ./
RUN python3 -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
o = p["optional-dependencies"]; print(*p["dependencies"], *o["loggers"], *o["local"], sep="\n")' > requirements.txt \
 && python3 -m pip install --no-compile -c constraints.txt -r requirements.txt --root /dependencies \
 && python3 compile.py /dependencies /dependencies \
 && python3 -m pip install --no-compile -c constraints.txt hatchling
COPY README.md LICENSE ./
COPY manifests/examples manifests/examples
COPY operator operator
COPY trainer trainer
RUN python3 -m pip install --no-compile --no-deps --no-build-isolation --root /installed . \
 && python3 compile.py /installed /installed
COPY docker/demo.py /installed/usr/local/bin/demo

FROM torch AS trainer
# Group 0 may do what the user may: OpenShift runs an image as a user of its own choice, always in that group.
RUN useradd --uid 65532 --no-log-init --create-home --shell /usr/sbin/nologin trainmaster \
 && install --directory --owner=65532 --group=0 --mode=0775 /runs \
 && chgrp -R 0 /home/trainmaster && chmod -R g=u /home/trainmaster
COPY --from=build /dependencies/ /
COPY --from=build /installed/ /
ENV HOME=/home/trainmaster USER=trainmaster PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /home/trainmaster
USER 65532:65532
CMD ["python3", "-m", "trainmaster.agent"]
