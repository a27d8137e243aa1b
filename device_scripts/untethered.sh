#!/system/bin/sh
# A program's calls while nobody listens: the phone writes down itself what its gauge says. POSIX sh as mksh + toybox (or
# dash, busybox) run it.
#
#   untethered.sh start FOLDER CYCLES WINDOW_S LEAD_S NAP_S   continues in the background; prints `started`
#
# FOLDER/call is a line for sh that calls the program once. FOLDER/gauge gets the lines of gauge.sh, FOLDER/marks what was
# done when, by the phone's uptime: `boot ID`, then `idle`, `busy`, `rest` and `end` of each cycle, `rest` with the number of
# calls; at last `done` or `failed WHY`. The power of the port is to go within the first LEAD_S seconds.
# shellcheck disable=SC1091,SC2154  # sourced, and what it sets
. "${0%/*}/processes.sh"

mark() {
    read -r uptime _ </proc/uptime
    echo "$1 $uptime $2" >>"$folder/marks"
}

# hundredths: sets now to the uptime in 1/100 s, whole as a shell counts.
hundredths() {
    read -r uptime _ </proc/uptime
    now=${uptime%.*}${uptime#*.}
}

finish() {
    kill "$gauge" 2>/dev/null
    echo "$*" >>"$folder/marks"
    sync
    exit 0
}

busy() {
    hundredths
    end=$((now + window)) calls=0
    while [ "$now" -lt "$end" ]; do
        sh "$folder/call" >"$folder/said" 2>&1 ||
            finish "failed the program ended with exit code $?: $(tail -n 1 "$folder/said" | cut -c 1-200)"
        calls=$((calls + 1))
        hundredths
    done
}

run() {
    echo "boot $(boot_id)" >"$folder/marks"
    sh "${0%/*}/gauge.sh" "$nap_s" $$ >"$folder/gauge" 2>/dev/null &
    gauge=$!
    sleep "$lead_s"
    while [ "$cycles" -gt 0 ]; do
        mark idle
        sleep "$window_s"
        mark busy
        busy
        mark rest "$calls"
        sleep "$window_s"
        mark end
        cycles=$((cycles - 1))
    done
    finish "done"
}

action=$1 folder=$2 cycles=$3 window_s=$4 lead_s=$5 nap_s=$6
window=${window_s%.*}${window_s#*.} # with two decimals
while [ "${window#0}" != "$window" ]; do window=${window#0}; done # 008 is no number to a shell that reads it as octal
case $action in
start)
    if command -v setsid >/dev/null; then
        setsid sh "$0" run "$folder" "$cycles" "$window_s" "$lead_s" "$nap_s" </dev/null >/dev/null 2>&1 &
    else
        (trap '' HUP && exec sh "$0" run "$folder" "$cycles" "$window_s" "$lead_s" "$nap_s") </dev/null >/dev/null 2>&1 &
    fi
    echo started
    ;;
run) run ;;
*) exit 2 ;;
esac
