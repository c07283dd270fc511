# edge-llm in a container: no root, no compiler, models in a volume.
#
#   docker build -t edge-llm .
#   docker run -d --name edge-llm -p 127.0.0.1:8080:8080 -e EDGE_LLM_API_KEY=... -v edge-llm:/models edge-llm
#   docker exec edge-llm edge-llm import Qwen/Qwen3-0.6B --name qwen
#
# In the container it listens on every address, or nobody outside could reach it; so it asks for a key.
# The wheels of `python assets/wheels.py`, where dist has them, are for both processors; without them the kernels are compiled.
FROM python:3.13-slim-bookworm AS build
WORKDIR /source
COPY . .
RUN set -e; \
    if ls dist/*.whl >/dev/null 2>&1; then what="--only-binary edge-llm --find-links dist edge-llm"; \
    else apt-get update; apt-get install -y --no-install-recommends g++; what=.; fi; \
    python -m venv /opt/edge-llm; /opt/edge-llm/bin/pip install --no-cache-dir --disable-pip-version-check $what

FROM python:3.13-slim-bookworm
LABEL org.opencontainers.image.title="edge-llm" org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --gid 10001 edge-llm && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /models edge-llm \
    && install -d -o edge-llm -g edge-llm /models
COPY --from=build /opt/edge-llm /opt/edge-llm
ENV PATH=/opt/edge-llm/bin:$PATH EDGE_LLM_HOME=/models HF_HOME=/models/hub PYTHONUNBUFFERED=1
USER edge-llm
WORKDIR /models
VOLUME /models
EXPOSE 8080
# /health is 503 while a model loads
HEALTHCHECK --interval=30s --timeout=5s --start-period=120s --retries=3 \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8080/health', timeout=4)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["edge-llm"]
CMD ["serve", "--host", "0.0.0.0", "--port", "8080"]
