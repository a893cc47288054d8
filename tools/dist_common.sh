# What dist_train.sh and dist_test.sh check, and how they start processes: sourced by them.

stop() {
    echo "$*" >&2
    exit 2
}

# start GPUS TOOL ARGUMENTS...: one process for each GPU, over this machine or NNODES of them
start() {
    local processes=$1 tool=$2 python="${PYTHON:-python}" port="${PORT:-29500}"
    shift 2
    [[ $port =~ ^[0-9]+$ ]] && ((port > 0 && port < 65536)) ||
        stop "$0: PORT takes a number from 1 to 65535, got '$port'"
    # The first machine listens on the port, the others connect to it.
    if [ "${NODE_RANK:-0}" = 0 ]; then
        "$python" -c "import socket; socket.create_server(('', $port)).close()" 2>/dev/null ||
            stop "$0: port $port is in use; name another with PORT=..."
    fi
    exec "$python" "$(dirname "$0")/launch.py" \
        --nnodes="${NNODES:-1}" --node_rank="${NODE_RANK:-0}" --nproc_per_node="$processes" \
        --master_addr="${MASTER_ADDR:-127.0.0.1}" --master_port="$port" \
        "$(dirname "$0")/$tool" "$@" --launcher pytorch
}
