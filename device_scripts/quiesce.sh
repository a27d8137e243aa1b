#!/system/bin/sh
# A phone made quiet for a measurement, and back. POSIX sh as mksh + toybox (or dash, busybox) run it.
#
#   quiesce.sh begin gentle|full usb|network OWNER SECONDS   changes what it can; it changes it back by itself after SECONDS
#   quiesce.sh renew SECONDS   ... or after so many more
#   quiesce.sh end [OWNER]     changes everything back that (this owner) changed; nothing to do where nothing was
#
# `begin` prints `took STEP WHAT` and `refused STEP WHY`, then `begun LEVEL`. `end` prints `restored`, `left` (somebody else
# changed it meanwhile: theirs stays), `rebooted` (it went with the boot) and `failed` (it can be tried again) with the value's
# name, then `ended` or, with exit code 1, `unfinished`.
# The ledger holds each value as it was and is on the phone's storage before anything is changed, so that a begin that was cut
# anywhere, a lost cable, a killed farm or a reboot ends with the old values. Thermal limits are never touched: they are caps
# above governors and power levels, and continue to hold.
# shellcheck disable=SC1091,SC2034,SC2154  # sourced, what it sets and what it is given
. "${0%/*}/processes.sh"
. "${0%/*}/phone_values.sh"

ROOT=${0%/bin/*}    # the scripts live in ROOT/bin
QUIET=$ROOT/quiesce
LEDGER=$QUIET/ledger    # boot, owner and level; then KIND PLACE NEW OLD, in the order of the changes
SYS=/sys
DIM=10                  # of 255; 0 is black on some panels, and off on others

uptime_s() {
    read -r up _ </proc/uptime
    echo "${up%%.*}"
}

# --- begin ------------------------------------------------------------------------------------------------------------

# plan STEP KIND PLACE NEW: notes what is to be changed, and how it is now.
plan() {
    get "$2" "$3"
    case $value in
    "$4") echo "took $1 $3=$4 (it was so)" ;;
    '') echo "refused $1 $3: the phone does not say what it is" ;;
    *[!a-zA-Z0-9._-]*) echo "refused $1 $3: its value cannot be kept" ;;
    *)
        planned="$planned$2 $3 $4 $value
"
        steps="$steps$1 "
        ;;
    esac
}

# await_watch: the watch starts while values are read, and nothing is changed without it.
await_watch() {
    round=0
    while [ ! -e "$QUIET/watch" ] && [ "$round" -lt "$REAP_ROUNDS" ]; do
        nap
        round=$((round + 1))
    done
}

# carry_out: the plan into the ledger, then the changes.
carry_out() {
    await_watch
    {
        echo "boot $(boot_id) - -"
        echo "owner $owner $level -"
        printf '%s' "$written$planned"
    } >"$LEDGER.new"
    if ! mv -f "$LEDGER.new" "$LEDGER"; then
        echo "failed the ledger cannot be written"
        exit 1
    fi
    # What is in memory only would be lost with the power, and the settings would not.
    if command -v fsync >/dev/null; then fsync "$LEDGER"; else sync; fi
    for step in $steps; do
        line=${planned%%"
"*}
        planned=${planned#*"
"}
        written="$written$line
"
        # shellcheck disable=SC2086
        set -- $line
        put "$1" "$2" "$3"
        get "$1" "$2"
        case $value in
        "$3") echo "took $step $2=$3" ;;
        "$4") echo "refused $step $2: the phone keeps it at $4" ;;
        *)
            # It rounds, or something else holds it: what it says now is ours to change back, too, if it is one word.
            case $value in *[!a-zA-Z0-9._-]*) value='?' ;; esac
            echo "$1 $2 ${value:-?} $4" >>"$LEDGER"
            written="$written$1 $2 ${value:-?} $4
"
            echo "refused $step $2: it became ${value:-unreadable}, not $3"
            ;;
        esac
    done
    planned='' steps=''
}

# With the screen off nothing but a wake lock keeps every phone's CPU from suspending, and that is root's. Else the screen
# stays on, as dark as it goes: a suspended phone measures nothing.
plan_screen() {
    lock=$SYS/power/wake_lock
    if [ -n "$root" ] && [ -e "$lock" ]; then
        plan awake wakelock "$lock" held
        [ -z "$planned" ] || carry_out
        get wakelock "$lock"
        if [ "$value" = held ]; then
            plan screen screen display Asleep
            return
        fi
    else
        echo "refused awake wake_lock: it needs root, so the screen stays on"
    fi
    plan awake global stay_on_while_plugged_in 7
    plan awake system screen_off_timeout 2147483647
    plan screen system screen_brightness_mode 0
    plan screen system screen_brightness "$DIM"
    plan screen screen display Awake
}

plan_gentle() {
    for each in window_animation_scale transition_animation_scale animator_duration_scale; do
        plan animations global "$each" 0
    done
    plan_screen
}

plan_full() {
    if [ "$link" = usb ]; then
        plan airplane airplane radios 1
    else
        echo "refused airplane radios: the farm reaches the phone through them"
    fi
    for each in wifi_scan_always_enabled ble_scan_always_enabled heads_up_notifications_enabled; do
        plan background global "$each" 0
    done
    if [ "$link" = usb ]; then
        plan background doze deep-idle true    # apps' jobs, syncs, alarms and network wait; the shell is no app
    else
        echo "refused background deep-idle: the farm reaches the phone through its radios"
    fi
    plan fixed-performance mode set-fixed-performance-mode-enabled true    # of vendors who have it (Android 11); no root needed
    plan_cpu
    plan_gpu
}

# pin STEP FILE VALUE
pin() {
    if [ -n "$root" ] || [ -w "$2" ]; then plan "$1" file "$2" "$3"; else echo "refused $1 $2: it needs root"; fi
}

plan_cpu() {
    set -- "$SYS"/devices/system/cpu/cpufreq/policy[0-9]*
    [ -d "$1" ] || set -- "$SYS"/devices/system/cpu/cpu[0-9]*/cpufreq
    seen=' '
    for each in "$@"; do
        cores=''
        { IFS= read -r cores <"$each/related_cpus"; } 2>/dev/null
        case $seen in *" $cores; "*) continue ;; esac    # a policy once, under whichever of its cores
        [ -e "$each/scaling_governor" ] || continue
        seen="$seen $cores; "
        pin cpu "$each/scaling_governor" performance
    done
    [ "$seen" != ' ' ] || echo "refused cpu cpufreq: the phone does not show it"
}

plan_gpu() {
    each=$SYS/class/kgsl/kgsl-3d0 fastest=''
    if { IFS= read -r fastest <"$each/max_pwrlevel"; } 2>/dev/null; then
        pin gpu "$each/min_pwrlevel" "$fastest"    # levels count from the fastest
        return
    fi
    for each in "$SYS"/class/misc/mali0/device/devfreq/*/governor "$SYS"/class/devfreq/*mali*/governor; do
        [ ! -e "$each" ] || { pin gpu "$each" performance; return; }
    done
    echo "refused gpu clock: the phone shows none that can be set"
}

begin() {
    case "$#:$1:$2:$4" in 4:gentle:usb:[1-9]* | 4:gentle:network:[1-9]* | 4:full:usb:[1-9]* | 4:full:network:[1-9]*) ;; *) usage ;; esac
    end >/dev/null || { echo "failed what was changed before cannot be changed back"; exit 1; }
    level=$1 link=$2 owner=$3 planned='' written='' steps='' mode=false
    find_root
    [ -n "$(ask settings get global airplane_mode_on)" ] || { echo "failed its settings do not answer"; exit 1; }
    mkdir -p "$QUIET" || { echo "failed the ledger cannot be written"; exit 1; }
    renew "$4" >/dev/null
    # What is started in the background must not hold the lock, nor whatever this shell was given: simple commands, as mksh
    # keeps copies of what it redirects for compound ones.
    if command -v setsid >/dev/null; then
        setsid sh "$0" watch </dev/null >/dev/null 2>&1 8>&- &
    else
        sh "$0" watch </dev/null >/dev/null 2>&1 8>&- &
    fi
    plan_gentle
    [ "$level" != full ] || plan_full
    carry_out
    if [ "$level" = full ]; then
        ask am kill-all >/dev/null    # cached apps, which Android ends itself whenever it likes
    fi
    echo "begun $level"
}

# --- end --------------------------------------------------------------------------------------------------------------

# back KIND PLACE NEW OLD: one value as it was, unless it is not as we made it. Sets outcome.
back() {
    if [ "$same_boot" = no ]; then
        case $1 in file | wakelock | doze | mode | screen) outcome=rebooted; return ;; esac
    fi
    mode=$3
    get "$1" "$2"
    case $value in
    '') outcome=failed ;;
    "$4") outcome='' ;;
    "$3")
        put "$1" "$2" "$4"
        get "$1" "$2"
        outcome=restored
        [ "$value" = "$4" ] || outcome=failed
        ;;
    *) outcome=left ;;
    esac
}

end() {
    if [ ! -e "$LEDGER" ]; then
        end_watch
        rm -rf "$QUIET"
        echo "ended"
        return
    fi
    find_root
    lines='' same_boot=no header='' unfinished='' whose=''
    while read -r kind place new old; do
        case $kind in
        boot)
            header="boot $place - -"
            [ "$place" != "$(boot_id)" ] || same_boot=yes
            ;;
        owner)
            header="$header
owner $place $new -"
            whose=$place
            ;;
        global | system | secure | airplane | file | screen | wakelock | doze | mode)
            # Whoever has a shell here can write this file, and a line may have been cut: only plain words are acted on.
            case $kind:$place:$new:$old in
            *[!a-zA-Z0-9._/?,:-]* | *..*) echo "unknown $kind $place" ;;
            file:[!/]* | wakelock:[!/]*) echo "unknown $kind $place" ;;
            *) [ -z "$old" ] || lines="$kind $place $new $old
$lines" ;;
            esac
            ;;
        *) echo "unknown $kind $place" ;;
        esac
    done <"$LEDGER"
    if [ -n "${1-}" ] && [ "$1" != "$whose" ]; then
        echo "ended"
        return
    fi
    while [ -n "$lines" ]; do
        line=${lines%%"
"*}
        lines=${lines#*"
"}
        # shellcheck disable=SC2086
        set -- $line
        back "$@"
        case $outcome in
        '') ;;
        failed)
            echo "failed $2 (it was $4)"
            unfinished="$line
$unfinished"
            ;;
        left) echo "left $2=$value (farm made it $3, before it was $4)" ;;
        *) echo "$outcome $2=$4" ;;
        esac
    done
    if [ -n "$unfinished" ]; then
        { echo "$header"; printf '%s' "$unfinished"; } >"$LEDGER.new"
        mv -f "$LEDGER.new" "$LEDGER"
        echo "unfinished"
        return 1
    fi
    end_watch
    rm -rf "$QUIET"
    echo "ended"
}

# --- when nobody ends it ----------------------------------------------------------------------------------------------

renew() {
    case $1 in '' | *[!0-9]*) usage ;; esac
    [ -d "$QUIET" ] || { echo "ended"; return; }
    echo $(($(uptime_s) + $1)) >"$QUIET/deadline.new" && mv -f "$QUIET/deadline.new" "$QUIET/deadline"
    echo "renewed"
}

# Detached from adb: waits until the deadline, which `renew` moves, then ends it.
watch() {
    stat_of $$
    echo "$$ $ticks" >"$QUIET/watch"
    while read -r deadline <"$QUIET/deadline"; do
        left=$((deadline - $(uptime_s)))
        if [ "$left" -gt 0 ]; then
            sleep "$left"
        else
            locked end
            [ -d "$QUIET" ] || return
            sleep 60    # what failed is tried again
        fi
    done
} 2>/dev/null

end_watch() {
    watcher='' started=''
    { read -r watcher started <"$QUIET/watch"; } 2>/dev/null
    if [ -n "$watcher" ] && [ "$watcher" != $$ ] && same_process "$watcher" "$started"; then
        kill -s KILL "$watcher" 2>/dev/null
        kill_group "$watcher"
    fi
}

# locked COMMAND...: one at a time, where the phone has flock.
locked() {
    {
        ! command -v flock >/dev/null || flock 8
        "$@"
    } 8>"$ROOT/quiesce.lock"
}

usage() {
    echo "failed usage: quiesce.sh begin gentle|full usb|network OWNER SECONDS | renew SECONDS | end [OWNER]"
    exit 2
}

trap '' HUP PIPE    # neither a lost link nor a vanished reader cuts a change
order=${1-}
[ $# = 0 ] || shift
case $order in
begin | end) locked "$order" "$@" ;;
renew) renew "${1-}" ;;
watch) watch ;;
*) usage ;;
esac
