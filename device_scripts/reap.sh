#!/system/bin/sh
# Removes what sessions left on the phone: SIGKILL to the server's children and to every process group they made, so a kernel
# that ignores SIGTERM goes too; the server itself lives on and takes the next session.
# Prints `reaped=N server=alive|dead`, or `failed ...` naming what does not die. POSIX sh as mksh + toybox run it.
# shellcheck disable=SC1091,SC2154  # sourced, and what it sets
. "${0%/*}/processes.sh"

STATE=${0%/bin/*}/run/state

server='' started_ticks='' boot=''
while IFS='=' read -r name value; do
    case $name in pid) server=$value ;; ticks) started_ticks=$value ;; boot) boot=$value ;; esac
done 2>/dev/null <"$STATE"
if [ -z "$started_ticks" ] || [ "$boot" != "$(boot_id)" ]; then
    echo "reaped=0 server=dead"
    exit 0
fi
if ! reap_family "$server"; then
    said=''
    for pid in $relatives; do
        stat_of "$pid" && said="$said $pid(state $state)"
    done
    echo "failed processes do not die:$said (stuck in a driver: only a reboot helps)"
    exit 1
fi
# A stopped server takes connections and answers nobody: to its users it is dead.
if same_process "$server" "$started_ticks" && [ "$state" != T ]; then
    echo "reaped=$reaped server=alive"
else
    echo "reaped=$reaped server=dead"
fi
