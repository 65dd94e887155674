# Gateway, control plane (with the web UI), worker and migrations. No torch.
FROM node:24-slim AS webui
WORKDIR /src/webui
COPY webui/package.json webui/package-lock.json webui/.npmrc ./
RUN npm ci --ignore-scripts
COPY webui/ ./
RUN npm run build

FROM python:3.12-slim AS wheel
WORKDIR /src
COPY . .
COPY --from=webui /src/platform/tenora_platform/webui platform/tenora_platform/webui
RUN pip wheel --no-deps --wheel-dir /wheel .

FROM python:3.12-slim
COPY constraints.txt /tmp/constraints.txt
RUN --mount=type=bind,from=wheel,source=/wheel,target=/wheel \
    pip install --no-cache-dir -c /tmp/constraints.txt "$(ls /wheel/*.whl)[platform,s3]"
RUN useradd --system --create-home --uid 10001 tenora && install -d -o tenora /var/lib/tenora /var/lib/tenora/blobs /var/lib/tenora/spool /models
USER tenora
ENV TENORA_HOME=/var/lib/tenora TENORA_HOST=0.0.0.0 PYTHONUNBUFFERED=1
EXPOSE 8080
ENTRYPOINT ["tenora"]
CMD ["gateway"]
