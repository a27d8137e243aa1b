# shellcheck shell=sh
# Processes on the phone, for the scripts beside this one. POSIX sh as mksh + toybox (or dash, busybox) run it; no ps, no pgrep:
# their columns differ between Android releases, /proc does not. Sourced, never run.

REAP_ROUNDS=60      # of about 50 ms: how long SIGKILL may take; longer means a process stuck in a driver

nap() {
    sleep 0.05 2>/dev/null || sleep 1
}

# ask COMMAND...: bounded where the phone has `timeout`; system_server may be stuck while the shell is not. What it says
# counts, never its status: toybox 0.8.9's `timeout` ends with 127 after half of all quick commands.
ask() {
    if command -v timeout >/dev/null; then timeout 4 "$@"; else "$@"; fi 2>/dev/null </dev/null
}

# find_root: sets root to how one writes as root here, `self`, `su`, or '' where one cannot.
find_root() {
    root=''
    if [ "$(id -u)" = 0 ]; then
        root=self
    elif command -v su >/dev/null && [ "$(ask su -c 'id -u')" = 0 ]; then
        # shellcheck disable=SC2034  # read by charge.sh and quiesce.sh
        root=su
    fi
}

# This boot's name. Some builds hide boot_id from the shell: the boot time does as well. A virtual phone that shares the
# lab host's kernel says itself where its own is.
boot_id() {
    if { read -r boot <"${FARM_BOOT_ID_FILE:-/proc/sys/kernel/random/boot_id}"; } 2>/dev/null; then
        echo "$boot"
    else
        while read -r word value _; do
            [ "$word" = btime ] && echo "btime-$value"
        done </proc/stat
    fi
}

# stat_of PID: sets state, parent, session, ticks (start time in clock ticks). Fails when there is no such process.
stat_of() {
    { read -r line <"/proc/$1/stat"; } 2>/dev/null || return 1
    # The name in parentheses may hold anything, blanks and parentheses too: fields count from after the last one.
    # shellcheck disable=SC2086
    set -- ${line##*\) }
    [ $# -ge 20 ] || return 1
    state=$1 parent=$2 session=$4 ticks=${20}
}

# same_process PID TICKS: alive, and not another process that got the number later.
same_process() {
    stat_of "$1" && [ "$ticks" = "$2" ] && [ "$state" != Z ] && [ "$state" != X ]
}

# family LEADER: living processes of LEADER's session (it was started with setsid, so also those that made groups of their
# own, and those it left when it died) and every descendant of it or of them; LEADER itself left out. Sets relatives.
family() {
    relatives='' table=''
    for dir in /proc/[0-9]*; do
        stat_of "${dir#/proc/}" || continue
        case $state in Z | X) continue ;; esac
        table="$table ${dir#/proc/}:$parent:$session"
    done
    grown=1
    while [ "$grown" = 1 ]; do
        grown=0
        for row in $table; do
            pid=${row%%:*} rest=${row#*:}
            [ "$pid" != "$1" ] || continue
            case " $relatives " in *" $pid "*) continue ;; esac
            if [ "${rest#*:}" != "$1" ] && [ "${rest%:*}" != "$1" ]; then
                case " $relatives " in *" ${rest%:*} "*) ;; *) continue ;; esac
            fi
            relatives="$relatives $pid"
            grown=1
        done
    done
}

# reap_family LEADER: SIGKILL all relatives of LEADER, not LEADER itself, until none is left. Sets reaped (how many).
# Each with its process group, if it leads one: what it forks meanwhile goes too. Fails when some do not go: relatives
# then names them.
reap_family() {
    reaped='' round=0
    while [ "$round" -lt "$REAP_ROUNDS" ]; do
        family "$1"
        if [ "$round" = 0 ]; then
            # shellcheck disable=SC2034,SC2086  # read by reap.sh
            reaped=$(count $relatives)
        fi
        [ -n "$relatives" ] || return 0
        for pid in $relatives; do
            kill -s KILL -- "-$pid" "$pid" 2>/dev/null || kill -s KILL "$pid" 2>/dev/null
        done
        nap
        round=$((round + 1))
    done
    return 1
}

count() {
    echo $#
}

# kill_group LEADER: SIGKILL the process group and all relatives, verified.
kill_group() {
    kill -s KILL -- "-$1" 2>/dev/null
    reap_family "$1" || return 1
    round=0
    while stat_of "$1" && [ "$state" != Z ] && [ "$state" != X ]; do
        [ "$round" -lt "$REAP_ROUNDS" ] || return 1
        nap
        round=$((round + 1))
    done
}
