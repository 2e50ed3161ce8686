# The trainer's image with another torch, for a job whose pods differ. The wheel's folder is mounted at /wheels.
ARG BASE
FROM ${BASE}
ARG WHEEL
USER 0
RUN python3 -m pip install --break-system-packages --root-user-action=ignore --no-cache-dir --no-compile --no-deps \
    --no-index "/wheels/${WHEEL}"
USER 65532:65532
