#!/usr/bin/env bash
# Verifies webhooks by standardwebhooks of PyPI, which it fetches into target/webhooks first.
#
#   tests/webhooks/verify.sh < REQUESTS
#
# Each line is {"secret", "headers", "body", "later"}: the request is verified as if it came so many
# seconds later. Prints "ok" or the reason for each. Needs python3 with venv.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
home="${CARGO_TARGET_DIR:-$root/target}/webhooks"
if [ ! -x "$home/venv/bin/python" ] || ! "$home/venv/bin/python" -c 'import standardwebhooks' 2>/dev/null; then
    mkdir -p "$home"
    python3 -m venv "$home/venv" >&2
    "$home/venv/bin/pip" install --quiet standardwebhooks==1.1.0 >&2
fi
exec "$home/venv/bin/python" "$root/tests/webhooks/verify.py"
