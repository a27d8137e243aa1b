#!/system/bin/sh
# Where the processes that serve the RPC server's session run. POSIX sh as mksh + toybox (or dash, busybox) run it.
#
#   cores.sh MASK|- [top-app]   MASK: cores as a hexadecimal number, -: as they are. top-app: in Android's group of the app in front
#
# Prints `process PID MASK` for each, with the cores that it has now; `refused cores WORDS` and `refused top-app WORDS`.
# shellcheck disable=SC1091,SC2154  # sourced, and what it sets
. "${0%/*}/processes.sh"

STATE=${0%/bin/*}/run/state
GROUP=${FARM_CPUSET:-/dev/cpuset}/top-app/cgroup.procs

# to_front PID: moves a process with its threads, as root where one can be.
to_front() {
    if [ "$root" = su ]; then su -c "echo $1 >'$GROUP'"; else echo "$1" >"$GROUP"; fi
}

server='' relatives=''
while IFS='=' read -r name value; do
    [ "$name" != pid ] || server=$value
done <"$STATE"
[ -z "$server" ] || family "$server"
[ "$2" != top-app ] || find_root
for pid in $relatives; do
    if [ "$2" = top-app ] && ! said=$(to_front "$pid" 2>&1); then
        echo "refused top-app ${said##*: }"
    fi
    if [ "$1" != - ] && ! said=$(taskset -ap "$1" "$pid" 2>&1 >/dev/null); then
        echo "refused cores ${said##*: }"
    fi
    said=$(taskset -p "$pid" 2>/dev/null)
    echo "process $pid ${said##* }"
done
exit 0
