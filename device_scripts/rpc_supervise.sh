#!/system/bin/sh
# Life of the RPC server on the phone. POSIX sh as mksh + toybox (or dash, busybox) run it.
#
#   rpc_supervise.sh start BUNDLE SECRET_SHA256 PORT PORT_END   (the secret itself in $FARM_SECRET)
#       replaces whatever runs; prints `started port=N pid=N` or `failed REASON`, then the server's own words as `| ...`
#   rpc_supervise.sh follow ID   prints `following`, then, the moment the server is dead, one line `died ...`
#   rpc_supervise.sh status [BUNDLE SECRET_SHA256]   key=value lines; `adoptable=yes|no` and `why=` compare with the arguments
#   rpc_supervise.sh stop        ends the server with every process it left
#   rpc_supervise.sh log         the server's log: its first and its latest lines
#   rpc_supervise.sh clean       stop, then remove everything of ours from the phone
#
# How a death is known at once: the supervisor holds a file lock for as long as it lives and waits for the server; a
# follower blocks on that lock, which the kernel releases whatever way the supervisor ends. The server itself must not
# inherit the locked descriptor. (A fifo would do too, but SELinux forbids the shell user to make one here.)
# shellcheck disable=SC1091,SC2154  # sourced, and what it sets
. "${0%/*}/processes.sh"

ROOT=${0%/bin/*}    # the scripts live in ROOT/bin
RUN=$ROOT/run
LOG=$RUN/log
LOG_PART_BYTES=524288   # of latest output kept twice: at most 1 MiB of log beside the start's lines
START_LINES=400         # a server that says this much without binding will not bind

# --- started in the background by `start`: one process per server, in its own session ---------------------------------

# serve COMMAND...: the pipeline's left side: holds the lock, is the server's parent, knows how it ended.
serve() {
    exec 3>&-    # not as `serve 3>&-`: mksh would keep a copy to restore
    {
        ! command -v flock >/dev/null || flock -n 9
        # The launcher notes its own pid and start time before it becomes the server: no moment without a name to kill.
        # shellcheck disable=SC2016
        setsid sh -c 'read -r stat <"/proc/$$/stat"; echo "$2 $$ ${stat##*\) }" >"$1"; shift 2; exec "$@"' sh \
            "$RUN/pid.$id" "$boot" "$@" server --host=127.0.0.1 "--port=$port" \
            "--port-end=$port_end" "--key=$secret" "--work-dir=$RUN/work.$id" 2>&1 </dev/null 9>&- &
        server=$!
        wait "$server"
        status=$?
        left=''
        if ! kill_group "$server" >/dev/null 2>&1; then
            left=${relatives# }
            left=" stuck=${left%% *}"
        fi
        echo "status=$status$left at=$(date +%s)" >"$RUN/exit.$id.new"
        mv -f "$RUN/exit.$id.new" "$RUN/exit.$id"
        [ -n "$left" ] || rm -f "$RUN/pid.$id"    # by it the next start finds what did not die
    } 9>"$RUN/lock.$id"
}

# The pipeline's right side: reads the start line by line, then lets `head` do the copying at full speed.
# Descriptor 3 is the one `start` waits on.
keep_log() {
    lines=0 bound=''
    true >"$LOG"    # not `:`: a shell ends when a special built-in cannot redirect
    while [ -z "$bound" ] && [ "$lines" -lt "$START_LINES" ] && IFS= read -r line; do
        echo "$line" >>"$LOG"
        lines=$((lines + 1))
        case $line in
        *[Bb]"ind to "*)
            bound=${line##*:}
            bound=${bound%%[!0-9-]*}
            ;;
        esac
    done
    [ -d "$RUN/work.$id" ] || bound=removed
    case $bound in
    '' | *[!0-9]*)
        if [ "$bound" = removed ]; then
            echo "failed its files were removed while it started" >&3
        elif [ "$bound" = -1 ]; then
            echo "failed no free port from $port to $((port_end - 1))" >&3
        elif [ "$lines" -ge "$START_LINES" ]; then
            echo "failed no 'Bind to' in the first $lines lines" >&3
        elif [ -n "$bound" ]; then
            echo "failed cannot read a port from: $line" >&3
        else
            cat >/dev/null
            read -r ended <"$RUN/exit.$id"
            echo "failed the server ended before it was bound, ${ended%% *}" >&3
        fi
        end_named "$id"
        ;;
    *)
        read -r _ server stat <"$RUN/pid.$id"
        # shellcheck disable=SC2086
        set -- $stat
        {
            echo "version=1"
            echo "id=$id"
            echo "boot=$boot"
            echo "bundle=$bundle"
            echo "secret_sha256=$secret_sha256"
            echo "pid=$server"
            echo "pgid=$server"
            echo "ticks=${20}"
            echo "supervisor=$$"
            echo "port=$bound"
            echo "started=$(date +%s)"
        } >"$RUN/state.new"
        mv -f "$RUN/state.new" "$RUN/state"
        echo "started port=$bound pid=$server" >&3
        ;;
    esac
    exec 3>&-
    # The first lines stay in `log`; what follows fills log.tail, which becomes log.old when it is full.
    while head -c "$LOG_PART_BYTES" >"$LOG.tail" && [ "$(wc -c <"$LOG.tail")" -ge "$LOG_PART_BYTES" ]; do
        mv -f "$LOG.tail" "$LOG.old"
    done
    cat >/dev/null
}

supervise() {
    trap '' HUP PIPE    # inherited by the server: neither a lost link nor a vanished reader ends it
    id=$2 bundle=$3 secret_sha256=$4 port=$5 port_end=$6
    secret=$FARM_SECRET
    unset FARM_SECRET
    boot=$(boot_id)
    TMPDIR=$RUN/work.$id
    export TMPDIR
    cd "$RUN/work.$id" || exit 1
    home=$ROOT/bundles/$bundle
    set -- "$home"/ld-linux*
    if [ -x "$1" ]; then
        # The bundle's own C library, which programs of the phone must not find.
        set -- "$1" --library-path "$home" "$home/tvm_rpc"
    else
        LD_LIBRARY_PATH=$home
        export LD_LIBRARY_PATH
        set -- "$home/tvm_rpc"
    fi
    # This shell must let go of descriptor 3 too, so the pipeline cannot be its foreground.
    serve "$@" | keep_log &
    exec 3>&-
    wait
}

# --- the commands -----------------------------------------------------------------------------------------------------

# load_state: the state file's values as variables s_*; fails when there is none that is whole.
load_state() {
    s_id='' s_boot='' s_bundle='' s_secret_sha256='' s_pid='' s_ticks='' s_supervisor='' s_started=''
    while IFS='=' read -r name value; do
        case $name in
        id) s_id=$value ;; boot) s_boot=$value ;; bundle) s_bundle=$value ;; secret_sha256) s_secret_sha256=$value ;;
        pid) s_pid=$value ;; ticks) s_ticks=$value ;; supervisor) s_supervisor=$value ;;
        started) s_started=$value ;;
        esac
    done 2>/dev/null <"$RUN/state"
    [ -n "$s_id" ] && [ -n "$s_started" ]
} 2>/dev/null

# supervised ID PID: whether the supervisor of start ID still runs; its PID matters only where flock is missing.
supervised() {
    [ -e "$RUN/lock.$1" ] || return 1
    if command -v flock >/dev/null; then
        ! { flock -n -s 9; } 9<"$RUN/lock.$1" 2>/dev/null
    else
        [ -n "$2" ] && kill -0 "$2" 2>/dev/null
    fi
}

# end_named ID: ends the processes of start ID, or of every start where ID is '', found by their arguments: whoever removes
# our folder from the phone takes the pid files along, but no process. Adds those that do not die to stuck.
end_named() {
    # The first hyphen is a set, so that grep does not find itself.
    # shellcheck disable=SC2013  # one word a line
    for process in $(grep -l -e "[-]-work-dir=$RUN/work[.]$1" /proc/[0-9]*/cmdline 2>/dev/null); do
        process=${process%/cmdline}
        process=${process#/proc/}
        case " $stuck " in *" $process "*) continue ;; esac
        kill -s KILL "$process" 2>/dev/null
        kill_group "$process" || stuck="$stuck $process"
    done
}

# Every server that was ever started in this boot and may still live: pid files go when their server is gone.
stop_all() {
    stuck=''
    now=$(boot_id)
    load_state
    for file in "$RUN"/pid.*; do
        [ -e "$file" ] || continue
        read -r was pid rest <"$file" || continue
        # shellcheck disable=SC2086
        set -- $rest
        if [ "$was" = "$now" ]; then
            if same_process "$pid" "${20}"; then
                kill_group "$pid" || stuck="$stuck $pid"
            else
                # The server is gone; what it left is still of its session.
                reap_family "$pid" || stuck="$stuck $relatives"
            fi
        fi
        name=${file##*/pid.} round=0
        while supervised "$name" "$s_supervisor" && [ "$round" -lt "$REAP_ROUNDS" ]; do
            nap
            round=$((round + 1))
        done
        rm -f "$file"
    done
    end_named ''
    [ -z "$stuck" ]
}

stop_all_or_fail() {
    stop_all && return
    echo "failed processes do not die:$stuck (stuck in a driver: only a reboot helps)"
    exit 1
}

start() {
    if [ $# != 5 ] || [ -z "$FARM_SECRET" ]; then usage; fi
    bundle=$2
    if [ ! -x "$ROOT/bundles/$bundle/tvm_rpc" ]; then
        echo "failed no program tvm_rpc in bundle $bundle"
        exit 1
    fi
    id=$(echo "$3" | cut -c 1-16)
    stop_all_or_fail
    {
        # A start whose caller gave up may be under way: it ends first, then what it left.
        ! command -v flock >/dev/null || flock 8
        stop_all_or_fail
        rm -rf "$RUN"
        mkdir -p "$RUN/work.$id"
        # Ends when the supervisor closes descriptor 3, not when it ends.
        said=$(setsid sh "$0" supervise "$id" "$bundle" "$3" "$4" "$5" 3>&1 >/dev/null 2>&1 </dev/null 8>&- &)
    } 8>"$ROOT/start.lock"
    case $said in
    started*)
        echo "$said"
        ;;
    *)
        echo "${said:-failed the supervisor did not start}"
        tail -n 20 "$LOG" 2>/dev/null | while IFS= read -r line; do echo "| $line"; done
        exit 1
        ;;
    esac
}

follow() {
    [ $# = 2 ] || usage
    id=$2
    echo "following $id"
    supervisor=0
    ! load_state || [ "$s_id" != "$id" ] || supervisor=$s_supervisor
    if [ -e "$RUN/lock.$id" ]; then
        if command -v flock >/dev/null; then
            { flock -s 9; } 9<"$RUN/lock.$id"
        else
            while kill -0 "$supervisor" 2>/dev/null; do sleep 1; done
        fi
    fi
    if [ -e "$RUN/exit.$id" ]; then
        read -r ended <"$RUN/exit.$id"
        echo "died $ended"
    elif read -r was pid rest 2>/dev/null <"$RUN/pid.$id" && [ "$was" = "$(boot_id)" ]; then
        # The supervisor was killed: without it nobody would see the server die, so the server goes too.
        kill_group "$pid" && rm -f "$RUN/pid.$id"
        echo "died status=supervisor-killed at=$(date +%s)"
    else
        echo "died status=replaced at=$(date +%s)"
    fi
} 2>/dev/null

status() {
    now=$(boot_id)
    echo "boot_now=$now"
    if ! load_state; then
        echo "adoptable=no"
        echo "why=no server was started"
        return
    fi
    cat "$RUN/state"
    why=''
    if [ "$s_boot" != "$now" ]; then
        why="the phone was rebooted since"
    elif ! same_process "$s_pid" "$s_ticks"; then
        why="the server is dead"
    elif ! supervised "$s_id" "$s_supervisor"; then
        why="the supervisor is dead"
    elif [ $# = 3 ] && [ "$s_bundle" != "$2" ]; then
        why="it runs another bundle"
    elif [ $# = 3 ] && [ "$s_secret_sha256" != "$3" ]; then
        why="its secret is not ours"
    fi
    if [ -n "$why" ]; then
        echo "adoptable=no"
        echo "why=$why"
        return
    fi
    family "$s_pid"
    # shellcheck disable=SC2086
    echo "sessions=$(count $relatives)"
    echo "adoptable=yes"
}

stop() {
    stop_all_or_fail
    rm -f "$RUN/state"
    echo "stopped"
}

clean() {
    # What is noted of the charger and of the phone's settings goes with the folder: it must be done before.
    if ! said=$(sh "$ROOT/bin/charge.sh" allow 2>&1) && [ -e "$ROOT/charge" ]; then
        echo "failed its charging is still held back:" "$said"
        exit 1
    fi
    if ! said=$(sh "$ROOT/bin/quiesce.sh" end 2>&1) && [ -e "$ROOT/quiesce/ledger" ]; then
        echo "failed the phone's settings are not as they were:" "$said"
        exit 1
    fi
    stop_all
    cd / || exit 1
    rm -rf "$ROOT"
    if [ -e "$ROOT" ]; then
        echo "failed cannot remove $ROOT"
        exit 1
    fi
    [ -z "$stuck" ] || { echo "failed processes do not die:$stuck"; exit 1; }
    echo "cleaned"
}

usage() {
    echo "failed usage: rpc_supervise.sh start BUNDLE SECRET_SHA256 PORT PORT_END | follow ID | status | stop | log | clean"
    exit 2
}

case ${1-} in
start) start "$@" ;;
supervise) supervise "$@" ;;
follow) follow "$@" ;;
status) status "$@" ;;
stop) stop ;;
log) cat "$LOG" "$LOG.old" "$LOG.tail" 2>/dev/null ;;
clean) clean ;;
*) usage ;;
esac
