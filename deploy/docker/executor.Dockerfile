# The executor, with CUDA. From the root of the repository:
#   docker build -f deploy/docker/executor.Dockerfile -t infinipipe-executor:0.1.0 .
# The base holds the torch that CI runs, built for CUDA, and the compilers that flash-attn and Triton need.
ARG BASE=pytorch/pytorch:2.13.0-cuda13.0-cudnn9-devel
FROM ${BASE}

COPY . /src
RUN /src/deploy/docker/install.sh /src executor,cuda && rm -rf /src

RUN useradd --system --uid 10001 --user-group --create-home --home-dir /home/infinipipe infinipipe
USER 10001:10001
ENV PYTHONUNBUFFERED=1

# A run has a configuration and a planner of its own: they come with the command.
CMD ["python3", "-m", "infinipipe_executor", "--help"]
