#!/system/bin/sh
# The battery's gauge, read again and again until nobody listens. POSIX sh as mksh + toybox (or dash, busybox) run it.
#
#   gauge.sh SECONDS [PID]   prints `gauge NAME`, then every SECONDS a line: UPTIME CURRENT VOLTAGE COUNTER STATUS; ends
#                            with the process PID
#
# As the kernel's files have them, `-` for what is not told; units and signs are the vendor's. NAME is a folder of
# /sys/class/power_supply, or `dumpsys` where the shell may read none with a current or a charge counter.
# Files are read by the shell itself, and where it can wait for its input, which nobody sends, no process is started at all.
# shellcheck disable=SC1091  # sourced
. "${0%/*}/processes.sh"

SUPPLIES=${FARM_SYS:-/sys}/class/power_supply

# word_of FILE: sets value to its first line, `-` where it cannot be read.
word_of() {
    value=''
    { IFS= read -r value <"$1"; } 2>/dev/null
    value=${value:--}
}

uptime_of() {
    read -r uptime _ </proc/uptime
}

# find_supply FILE: sets supply to the battery that has it.
find_supply() {
    for supply in "$SUPPLIES/battery" "$SUPPLIES/bms" "$SUPPLIES"/*; do
        word_of "$supply/type"
        case $value in Battery | BMS) ;; *) continue ;; esac
        word_of "$supply/voltage_now"
        [ "$value" != - ] || continue
        word_of "$supply/$1"
        [ "$value" = - ] || return 0
    done
    return 1
}

from_files() {
    uptime_of
    word_of "$supply/current_now"
    line="$uptime $value"
    word_of "$supply/voltage_now"
    line="$line $value"
    word_of "$supply/charge_counter"
    line="$line $value"
    word_of "$supply/status"
    [ "$value" != - ] || word_of "$SUPPLIES/battery/status"
    echo "$line $value"
}

# The first line of each name counts: vendors append their logs.
from_service() {
    uptime_of
    ask dumpsys battery | {
        current='' voltage='' counter='' status=''
        while IFS=: read -r name value; do
            value=${value# }
            case $name in
            *"UPDATES STOPPED"*) status=set-by-hand ;;
            "  current now") current=${current:-$value} ;;
            "  voltage") voltage=${voltage:-$value} ;;
            "  Charge counter") counter=${counter:-$value} ;;
            "  status") status=${status:-$value} ;;
            esac
        done
        echo "$uptime ${current:--} ${voltage:--} ${counter:--} ${status:--}"
    }
}

# doze SECONDS: in vain for input; where that has ended, or the shell cannot, by a process.
doze() {
    if [ -n "$listens" ]; then
        # shellcheck disable=SC3045  # only where it is known
        read -r -t "$1" _ 2>/dev/null
        [ $? -le 128 ] || return 0
        listens=''
    fi
    sleep "$1" 2>/dev/null || sleep 1
}

listens=''
# shellcheck disable=SC3045  # asked whether it is known: then the end of the input is 1
(read -r -t 0.01 _) </dev/null 2>/dev/null
[ $? != 1 ] || listens=1
if find_supply current_now || find_supply charge_counter; then
    echo "gauge ${supply##*/}"
    read_gauge=from_files
else
    echo "gauge dumpsys"
    read_gauge=from_service
fi
while { [ -z "$2" ] || kill -0 "$2" 2>/dev/null; } && "$read_gauge"; do
    doze "$1"
done
