# The operator: the control plane alone, without torch and without a compiler.
#
#   docker build -f docker/operator.Dockerfile -t trainmaster/operator:0.1.0 .
#
# BASE is any image with Python 3.11 or newer and pip.
ARG BASE=python:3.12-slim

FROM ${BASE} AS build
ENV PIP_BREAK_SYSTEM_PACKAGES=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
COPY constraints.txt pyproject.toml docker/compile.py ./
RUN python3 -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
print(*p["dependencies"], *p["optional-dependencies"]["operator"], sep="\n")' > requirements.txt \
 && python3 -m pip install --no-compile -c constraints.txt -r requirements.txt --root /dependencies \
 && python3 compile.py /dependencies /dependencies \
 && python3 -m pip install --no-compile -c constraints.txt hatchling
COPY README.md LICENSE ./
COPY manifests/examples manifests/examples
COPY operator operator
COPY trainer trainer
RUN python3 -m pip install --no-compile --no-deps --no-build-isolation --root /installed . \
 && python3 compile.py /installed /installed
COPY docker docker
RUN python3 docker/agent_folder.py /installed/opt/trainmaster

FROM ${BASE} AS operator
# Group 0 may do what the user may: OpenShift runs an image as a user of its own choice, always in that group.
RUN useradd --uid 65532 --no-log-init --create-home --shell /usr/sbin/nologin trainmaster \
 && chgrp -R 0 /home/trainmaster && chmod -R g=u /home/trainmaster
COPY --from=build /dependencies/ /
COPY --from=build /installed/ /
ENV HOME=/home/trainmaster USER=trainmaster PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /home/trainmaster
USER 65532:65532
ENTRYPOINT ["python3", "-m", "trainmaster_operator.runtime.kubernetes_operator"]
