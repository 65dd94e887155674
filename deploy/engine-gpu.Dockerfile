# The engine on NVIDIA GPUs: torch brings its own CUDA libraries, the host brings the driver.
# That torch also brings the triton whose kernels the engine runs there (docs/kernels.md).
FROM python:3.12-slim AS wheel
WORKDIR /src
COPY . .
RUN pip wheel --no-deps --wheel-dir /wheel .

FROM python:3.12-slim
COPY constraints.txt /tmp/constraints.txt
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
RUN --mount=type=bind,from=wheel,source=/wheel,target=/wheel \
    pip install --no-cache-dir -c /tmp/constraints.txt "$(ls /wheel/*.whl)[engine,s3]"
RUN useradd --system --create-home --uid 10001 tenora && install -d -o tenora /var/lib/tenora /var/lib/tenora/blobs /var/lib/tenora/spool /models
USER tenora
ENV TENORA_HOME=/var/lib/tenora PYTHONUNBUFFERED=1 NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
ENTRYPOINT ["tenora"]
CMD ["engine"]
