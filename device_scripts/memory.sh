#!/system/bin/sh
# Memory of the processes that serve the RPC server's session. POSIX sh as mksh + toybox (or dash, busybox) run it.
#
#   memory.sh cpu|gpu [SECONDS]   gpu: that of the GPU too. SECONDS: apps that were killed since then, by the phone's clock
#
# Prints `now SECONDS`; for each process `process PID`, lines of its status and smaps_rollup, `gpu NAME BYTES` of kgsl, and
# `peaks reset` when its peak counts from here on; lines of Android's own count of GPU memory; `kill` and lmkd's words.
# shellcheck disable=SC1091,SC2154  # sourced, and what it sets
. "${0%/*}/processes.sh"

STATE=${0%/bin/*}/run/state
SYS=${FARM_SYS:-/sys}

# lines_of FILE: those that tell a size in memory or swap.
lines_of() {
    while read -r word value unit; do
        case $word in
        VmHWM: | VmRSS: | VmSwap: | Rss: | Pss: | Swap:) echo "$word $value $unit" ;;
        esac
    done <"$1"
}

server='' relatives=''
while IFS='=' read -r name value; do
    [ "$name" != pid ] || server=$value
done <"$STATE"
[ -z "$server" ] || family "$server"
echo "now $(date +%s)"
for pid in $relatives; do
    echo "process $pid"
    { lines_of "/proc/$pid/status"; } 2>/dev/null
    { lines_of "/proc/$pid/smaps_rollup"; } 2>/dev/null
    for name in gpumem_mapped gpumem_unmapped kernel_max; do
        # shellcheck disable=SC2015  # a value that cannot be read is not there
        { read -r value <"$SYS/class/kgsl/kgsl/proc/$pid/$name"; } 2>/dev/null && echo "gpu $name $value" || true
    done
    # shellcheck disable=SC2015  # likewise
    { echo 5 >"/proc/$pid/clear_refs"; } 2>/dev/null && echo "peaks reset" || true
done
[ "$1" != gpu ] || ask dumpsys gpu --gpumem
[ -z "$2" ] || ask logcat -d -v epoch -T "$2.000" -s lowmemorykiller | while read -r line; do
    case $line in *"Kill '"*) echo "kill ${line#*lowmemorykiller*: }" ;; esac
done | tail -n 20
exit 0
