#!/usr/bin/env bash
# Builds the guests in Python and JavaScript into a folder, with the toolchains that the README of
# guest-examples/ names. Fetches these first, some 300 MB from the registries of pip and npm, into
# target/other-guests.
#
#   tests/guests/build.sh FOLDER       makes FOLDER/tally.wasm and FOLDER/slugs.wasm
#
# Needs python3 with venv, node and npm.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
home="${CARGO_TARGET_DIR:-$root/target}/other-guests"
mkdir -p "$home" "$1"
out=$(cd "$1" && pwd)

if [ ! -x "$home/venv/bin/componentize-py" ]; then
    python3 -m venv "$home/venv" >&2
    "$home/venv/bin/pip" install --quiet componentize-py==0.25.1 >&2
fi
"$home/venv/bin/componentize-py" -d "$root/wit" -w tool-pure componentize --stub-wasi \
    -p "$root/guest-examples/python/tally" app -o "$out/tally.wasm" >&2

if [ ! -d "$home/node_modules/@bytecodealliance/jco" ]; then
    # With the shim that this version of jco asks for it cannot be installed.
    cat > "$home/package.json" <<'EOF'
{
  "private": true,
  "devDependencies": { "@bytecodealliance/jco": "1.35.0" },
  "overrides": { "@bytecodealliance/preview2-shim": "0.25.0" }
}
EOF
    npm install --silent --no-audit --no-fund --prefix "$home" >&2
fi
cd "$home"
npx jco componentize "$root/guest-examples/javascript/slugs/tool.js" --wit "$root/wit" \
    --world-name tool-pure --backend qjs --backend-qjs-stub-wasi --backend-qjs-disable-async \
    -o "$out/slugs.wasm" >&2
