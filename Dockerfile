# The operator's image. Every dependency is pinned by hash in the lock files, and compiled once here.
FROM debian:bookworm-slim AS builder
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN apt-get update \
 && apt-get install --yes --no-install-recommends ca-certificates python3-venv \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src

# The tools of the build stay in a virtual environment of their own; /opt/venv has only what runs.
COPY requirements-build.lock requirements.lock ./
RUN python3 -m venv /opt/build \
 && python3 -m venv --without-pip /opt/venv \
 && /opt/build/bin/pip install --require-hashes -r requirements-build.lock \
 && /opt/build/bin/pip --python /opt/venv/bin/python install --require-hashes -r requirements.lock

COPY pyproject.toml README.md LICENSE ./
COPY schema schema
COPY operator operator
RUN /opt/build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir dist . \
 && /opt/build/bin/pip --python /opt/venv/bin/python install --no-deps --no-index dist/*.whl

FROM debian:bookworm-slim
LABEL org.opencontainers.image.title="memory-operator" \
      org.opencontainers.image.description="Who may recall what: custom resources reconciled into SpiceDB" \
      org.opencontainers.image.source="https://github.com/memory-operator/memory-operator" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN apt-get update \
 && apt-get install --yes --no-install-recommends ca-certificates python3 \
 && rm -rf /var/lib/apt/lists/*
COPY --from=builder /opt/venv /opt/venv
# Logs appear as they are written, and nothing is written beside the code: the file system is read-only.
ENV PATH=/opt/venv/bin:/usr/bin:/bin PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# By number, so that Kubernetes can see that it is not root.
USER 65532:65532
ENTRYPOINT ["memory-operator"]
CMD ["operator"]
