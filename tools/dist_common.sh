# How dist_train.sh and dist_test.sh start processes: sourced by them.

stop() {
    echo "$*" >&2
    exit 2
}

# start PROCESSES TOOL ARGUMENTS...: so many on this machine, and as many on each other of NNODES
start() {
    exec "${PYTHON:-python}" "$(dirname "$0")/launch.py" "$@"
}
