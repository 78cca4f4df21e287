#!/usr/bin/env bash
# Installs InfiniPipe with extras, at the versions that CI runs: install.sh SOURCE EXTRAS
#
# SOURCE is this source tree or a wheel, EXTRAS a list such as planner or executor,cuda. Both images are made by it, and so
# is the clean environment in which `make wheel` tries what an image would hold.
set -euo pipefail

source=${1:?SOURCE is missing}
extras=${2:?EXTRAS are missing}
constraints=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/constraints.txt

"${PYTHON:-python3}" -m pip install --quiet --disable-pip-version-check --no-cache-dir -c "$constraints" "${source}[${extras}]"
