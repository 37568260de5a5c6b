#!/usr/bin/env bash
# The studio on a TPU VM, for an ordinary user without root:
#   bash deploy/start.sh                  install missing packages, run the doctor, start the studio in tmux
#   bash deploy/start.sh install          install uv, a supported Python and the packages
#   bash deploy/start.sh begin [OPTION]   start the studio in tmux, where it continues when the SSH connection ends
#   bash deploy/start.sh run [OPTION]     run the studio in the foreground, for systemd
# OPTIONs are options of `app.py serve` and replace the default --share. STUDIO_VENV is the virtual environment (default .venv).
# STUDIO_PYTHON is the version of a new environment's Python (default: any supported one).
# STUDIO_DATA_DIR and HF_HOME are the folders of videos, caches and checkpoints (docs/tpu.md).
set -euo pipefail
umask 077 # the log contains the operator's link, and the data folder the visitors' videos
cd "$(dirname "${BASH_SOURCE[0]}")/.."
venv=${STUDIO_VENV:-.venv}
session=wan-studio
uv=uv==0.13.9
log=${STUDIO_DATA_DIR:-data}/server.log

install_all() {
    export PATH="$HOME/.local/bin:$PATH"
    command -v uv >/dev/null || get_uv
    [ -x "$venv/bin/python" ] || uv venv --quiet --python "${STUDIO_PYTHON:->=3.11,<3.14}" "$venv"
    # Prefer PyTorch's CPU build: the default build includes gigabytes of CUDA that the studio does not use
    uv pip install --quiet --python "$venv" --torch-backend cpu --requirement requirements-tpu.txt ||
        uv pip install --quiet --python "$venv" --requirement requirements-tpu.txt
}

get_uv() {
    # newer systems refuse pip installs by ordinary users without this flag
    python3 -m pip install --quiet --user "$uv" 2>/dev/null ||
        python3 -m pip install --quiet --user --break-system-packages "$uv" ||
        { echo "uv cannot be installed: check that python3 has pip and that the network works" >&2 && exit 1; }
}

begin() {
    local variable given=""
    if command -v tmux >/dev/null && tmux has-session -t "=$session" 2>/dev/null; then
        echo "The studio is already running: tmux attach -t $session" >&2
        exit 1
    fi
    mkdir -p "$(dirname "$log")"
    if [ -n "${STUDIO_AUTH:-}" ]; then # a command line would show the password, and a running tmux server would not pass the variable on
        STUDIO_AUTH_FILE=$(cd "$(dirname "$log")" && pwd)/password
        rm -f "$STUDIO_AUTH_FILE" # a file of an earlier start keeps its mode
        printf '%s' "$STUDIO_AUTH" >"$STUDIO_AUTH_FILE"
        export STUDIO_AUTH_FILE
        unset STUDIO_AUTH
    fi
    if [ -n "${HF_TOKEN:-}" ]; then # for the same reasons; huggingface_hub reads the file
        HF_TOKEN_PATH=$(cd "$(dirname "$log")" && pwd)/hub-token
        rm -f "$HF_TOKEN_PATH"
        printf '%s' "$HF_TOKEN" >"$HF_TOKEN_PATH"
        export HF_TOKEN_PATH
        unset HF_TOKEN
    fi
    export STUDIO_LOG="$log" # the server starts a new log when it is large
    for variable in STUDIO_VENV STUDIO_DATA_DIR STUDIO_CACHE_DIR STUDIO_AUTH_FILE STUDIO_LOG \
        HF_HOME HF_ENDPOINT HF_HUB_OFFLINE HF_TOKEN_PATH JAX_PLATFORMS ISTPUVM "${!TPU_@}"; do
        # a running tmux server has the environment of its own start
        [ -z "${!variable:-}" ] || given+="$variable=$(printf '%q' "${!variable}") "
    done
    rm -f "$log" # other users could read the log of an older version
    : >"$log"
    if ! command -v tmux >/dev/null; then
        setsid nohup bash deploy/start.sh run "$@" >>"$log" 2>&1 &
    else
        tmux new-session -d -s "$session" "$given$(printf '%q ' bash deploy/start.sh run "$@") 2>&1 | tee -a $(printf '%q' "$log")"
    fi
    for _ in $(seq 120); do # a start ends with the operator's link
        sleep 1
        grep -q '[?]operator=' "$log" && break
    done
    cat "$log"
    echo "The studio continues when you log out. Its log is $log; tmux kill-session -t $session ends it."
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
        echo "Fix these problems, then start again. \`bash deploy/start.sh begin\` starts without the check." >&2
        exit 1
    }
    begin "$@"
    ;;
install) install_all ;;
begin) begin "$@" ;;
run) run "$@" ;;
*)
    echo "unknown command $what: give install, begin, run or nothing" >&2
    exit 2
    ;;
esac
