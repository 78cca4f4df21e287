# The planner, without torch. From the root of the repository:
#   docker build -f deploy/docker/planner.Dockerfile -t infinipipe-planner:0.1.0 .
# Also the image of a Ray cluster's nodes, so that solvers there run the same code.
FROM python:3.11-slim-bookworm

COPY . /src
RUN /src/deploy/docker/install.sh /src planner && rm -rf /src

RUN useradd --system --uid 10001 --user-group --create-home --home-dir /home/infinipipe infinipipe \
    && install -d -o infinipipe -g infinipipe /var/lib/infinipipe
USER 10001:10001
ENV PYTHONUNBUFFERED=1
VOLUME /var/lib/infinipipe
EXPOSE 50051 9464

# The answer of the service itself, over the options and variables of TLS that clients take.
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s CMD ["infinipipe", "health", "--planner", "127.0.0.1:50051"]
# Loopback: other containers reach a planner that is given --listen 0.0.0.0:50051 with --tls-cert and --tls-key.
CMD ["infinipipe", "serve", "--listen", "127.0.0.1:50051", "--store", "/var/lib/infinipipe/planner.sqlite", "--log-format", "json"]
