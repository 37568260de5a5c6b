#!/usr/bin/env bash
# The studio on a TPU VM, for an ordinary user without root:
#   bash deploy/start.sh                  all of it: install what is missing, let the doctor look, begin
#   bash deploy/start.sh install          uv, a Python that is new enough, the packages
#   bash deploy/start.sh begin [OPTION]   the studio in tmux, which goes on when the SSH connection ends
#   bash deploy/start.sh run [OPTION]     the studio in the foreground, as systemd wants it
# OPTIONs are those of `app.py serve`, in place of --share. STUDIO_VENV names another environment than .venv; where videos,
# checkpoints and caches go, STUDIO_DATA_DIR and HF_HOME say (docs/tpu.md).
set -euo pipefail
umask 077 # the log has the operator's link in it, and the data folder what visitors made
cd "$(dirname "${BASH_SOURCE[0]}")/.."
venv=${STUDIO_VENV:-.venv}
session=wan-studio
uv=uv==0.13.9
log=${STUDIO_DATA_DIR:-data}/server.log

install_all() {
    export PATH="$HOME/.local/bin:$PATH"
    command -v uv >/dev/null || get_uv
    [ -x "$venv/bin/python" ] || uv venv --quiet --python ">=3.11,<3.14" "$venv"
    # PyTorch's CPU build where it can be had: the usual one brings gigabytes of CUDA that nothing here uses
    uv pip install --quiet --python "$venv" --torch-backend cpu --requirement requirements-tpu.txt ||
        uv pip install --quiet --python "$venv" --requirement requirements-tpu.txt
}

get_uv() {
    # newer systems let nobody but the administrator use their pip, but for this flag
    python3 -m pip install --quiet --user "$uv" 2>/dev/null ||
        python3 -m pip install --quiet --user --break-system-packages "$uv" ||
        { echo "uv cannot be installed: is there a python3 with pip, and a network?" >&2 && exit 1; }
}

begin() {
    local variable given=""
    mkdir -p "$(dirname "$log")"
    if [ -n "${STUDIO_AUTH:-}" ]; then # no command line may show it, and a tmux that runs already does not know it
        STUDIO_AUTH_FILE=$(cd "$(dirname "$log")" && pwd)/password
        printf '%s' "$STUDIO_AUTH" >"$STUDIO_AUTH_FILE"
        export STUDIO_AUTH_FILE
        unset STUDIO_AUTH
    fi
    export STUDIO_LOG="$log" # the server begins it anew when it is large
    for variable in STUDIO_VENV STUDIO_DATA_DIR STUDIO_CACHE_DIR STUDIO_AUTH_FILE STUDIO_LOG HF_HOME HF_ENDPOINT JAX_PLATFORMS; do
        # a tmux that runs already has the environment of its own start
        [ -z "${!variable:-}" ] || given+="$variable=$(printf '%q' "${!variable}") "
    done
    if command -v tmux >/dev/null && tmux has-session -t "=$session" 2>/dev/null; then
        echo "It runs already: tmux attach -t $session" >&2
        exit 1
    fi
    rm -f "$log" # one of an older version could be read by others
    : >"$log"
    if ! command -v tmux >/dev/null; then
        setsid nohup bash deploy/start.sh run "$@" >>"$log" 2>&1 &
    else
        tmux new-session -d -s "$session" "$given$(printf '%q ' bash deploy/start.sh run "$@") 2>&1 | tee -a $(printf '%q' "$log")"
    fi
    for _ in $(seq 120); do # the last line of a start is the operator's link
        sleep 1
        grep -q "For the operator" "$log" && break
    done
    cat "$log"
    echo "It goes on when you leave. Its log is $log; tmux kill-session -t $session ends it."
}

run() {
    [ $# -gt 0 ] || set -- --share
    exec "$venv/bin/python" app.py serve "$@"
}

what=${1:-all}
[ $# -eq 0 ] || shift
case $what in
all)
    install_all
    "$venv/bin/python" app.py doctor || {
        echo "Mend what it says, then start again; \`bash deploy/start.sh begin\` starts all the same." >&2
        exit 1
    }
    begin "$@"
    ;;
install) install_all ;;
begin) begin "$@" ;;
run) run "$@" ;;
*)
    echo "$what must be install, begin or run, or be left out" >&2
    exit 2
    ;;
esac
