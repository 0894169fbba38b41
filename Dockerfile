# The server with an embedded worker. EXTRAS selects the worker: "server" (simulated GPU only),
# "server,worker-cuda13" (driver 580 or newer) or "server,worker-cuda12" (driver 525 or newer).
FROM python:3.12-slim

ARG EXTRAS=server

WORKDIR /src
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY tuner tuner
COPY runtime runtime
COPY workers workers
COPY migrations migrations
RUN pip install --no-cache-dir ".[${EXTRAS}]" \
    && useradd --create-home --uid 1000 tuner \
    && install --directory --owner=tuner --group=tuner /data /tls

USER tuner
# All commands in the image use the server's data: serve, token, key, gc.
ENV TUNER_DATA=/data
WORKDIR /data
VOLUME /data
EXPOSE 8000

HEALTHCHECK --interval=10s --timeout=3s --start-period=20s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/readyz', timeout=2)"]

# The server must listen on all interfaces of the container; `docker run --publish` decides which ports are reachable.
ENTRYPOINT ["tuner"]
CMD ["serve", "--host", "0.0.0.0", "--insecure", "--port", "8000"]
