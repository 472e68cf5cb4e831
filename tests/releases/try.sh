#!/usr/bin/env bash
# Try the last commit as its first users would: from a fresh clone, with an empty home, on a Python and versions of your choice.
#   bash tests/releases/try.sh python3.13 newest          the newest versions that pyproject.toml allows
#   bash tests/releases/try.sh python3.11 lowest          the lowest ones
#   bash tests/releases/try.sh python3.12 locked smoke    those of requirements.lock; without `make test`
# It takes some 10 GB and up to an hour in a folder that is deleted afterwards; FOLDER=... names one that is kept. As Linux'
# torch brings CUDA, PIP_ARGS="--extra-index-url <an index of CPU builds>" saves half of that.
set -euo pipefail

PYTHON=$(command -v "$1") VERSIONS=$2 UNTIL=${3:-test} PIP_ARGS=${PIP_ARGS:-}
if [ -n "${FOLDER:-}" ]; then mkdir -p "$FOLDER"; else FOLDER=$(mktemp -d) && trap 'rm -rf "$FOLDER"' EXIT; fi
git clone -q "$(git rev-parse --show-toplevel)" "$FOLDER/clone"
mkdir "$FOLDER/home" && export HOME=$FOLDER/home
unset PYTHONPATH VIRTUAL_ENV
cd "$FOLDER/clone"

"$PYTHON" -m venv "$FOLDER/tools" && "$FOLDER/tools/bin/pip" install -q build twine uv
case $VERSIONS in
    locked) LOCK=requirements.lock ;;
    newest) LOCK=$FOLDER/newest.txt && : >"$LOCK" ;;
    lowest)
        LOCK=$FOLDER/lowest.txt
        "$FOLDER/tools/bin/uv" pip compile -q --resolution lowest-direct --python "$PYTHON" --extra dev pyproject.toml -o "$LOCK"
        ;;
    *) echo "error: $VERSIONS is none of locked, newest, lowest" >&2 && exit 2 ;;
esac

echo "== $("$PYTHON" -V), $VERSIONS: wheel and source archive"
"$FOLDER/tools/bin/python" -m build -o "$FOLDER/dist" . >"$FOLDER/build.log" 2>&1
"$FOLDER/tools/bin/twine" check --strict "$FOLDER"/dist/*
"$PYTHON" -m venv "$FOLDER/installed"
"$FOLDER/installed/bin/pip" install -q -c "$LOCK" $PIP_ARGS "$FOLDER"/dist/*.whl
"$FOLDER/installed/bin/pip" check
for archive in "$FOLDER"/dist/*; do
    "$FOLDER/installed/bin/pip" install -q --force-reinstall --no-deps "$archive"
    rm -rf "$FOLDER/outside" && mkdir "$FOLDER/outside"
    (
        cd "$FOLDER/outside"
        "$FOLDER/installed/bin/rltune" --help | head -1
        "$FOLDER/installed/bin/rltune" run experiment=smoke check=true
        "$FOLDER/installed/bin/rltune" run experiment=smoke name=smoke
        "$FOLDER/installed/bin/python" -c 'import rltune; print(rltune.load_policy("models:/cartpole-ppo@champion"))'
    )
done
rm -rf "$FOLDER/installed"

echo "== make sweep"
make sweep PYTHON="$PYTHON" LOCK="$LOCK" PIP_ARGS="$PIP_ARGS" ARGS="experiment=smoke"
[ "$UNTIL" = smoke ] || make test PYTHON="$PYTHON" LOCK="$LOCK" PIP_ARGS="$PIP_ARGS"
echo "== $("$PYTHON" -V), $VERSIONS: passed"
