#!/usr/bin/env bash
# Implementations of the providers' protocols that others wrote, at exact versions, fetched into
# target/llm from the registries of pip and npm.
#
#   tests/llm/models.sh serve           aimock, on loopback; prints its address
#   tests/llm/models.sh judge           judges requests on standard input by the types of the SDKs,
#                                       one on a line
#
# Needs python3 with venv, node and npm.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
home="${CARGO_TARGET_DIR:-$root/target}/llm"
mkdir -p "$home"

case "$1" in
serve)
    if [ ! -d "$home/node_modules/@copilotkit/aimock" ]; then
        npm install --silent --no-save --prefix "$home" --ignore-scripts @copilotkit/aimock@1.43.0 >&2
    fi
    cp "$root/tests/llm/models.mjs" "$home/models.mjs"
    exec node "$home/models.mjs"
    ;;
judge)
    if [ ! -f "$home/judge/ready" ]; then
        python3 -m venv "$home/judge" >&2
        "$home/judge/bin/pip" install --quiet openai==3.54.0 anthropic==2.12.0 \
            google-genai==3.4.0 pydantic==2.14.3 jsonschema==4.26.0 >&2
        touch "$home/judge/ready"
    fi
    exec "$home/judge/bin/python" "$root/tests/llm/judge.py"
    ;;
esac
