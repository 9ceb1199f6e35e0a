#!/bin/sh
# What an image of deploy/Containerfile runs first. Where FLYWHEEL_GIT_URL is set, it brings the project to that repository's
# newest commit, or to the branch or tag FLYWHEEL_GIT_REF, with the names of the runs that are kept there. Then it runs the
# command.
set -eu
cd "$FLYWHEEL_ROOT"
if [ -n "${FLYWHEEL_GIT_URL:-}" ]; then
    # The address may hold a token: it stays in variables, which git reads, and gets into no file and no command line.
    export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=remote.origin.url GIT_CONFIG_VALUE_0="$FLYWHEEL_GIT_URL"
    git fetch --quiet --no-tags origin "+${FLYWHEEL_GIT_REF:-HEAD}:refs/remotes/origin/flywheel" "refs/runs/*:refs/runs/*"
    git checkout --quiet --force --detach refs/remotes/origin/flywheel
    sha256sum --check --status .venv/.lock || {
        echo "The commit's lock file is not the one that this image was built with: build the image from that commit." >&2
        exit 1
    }
fi
exec "$@"
