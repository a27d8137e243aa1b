#!/system/bin/sh
# Holds a phone's charging back, where root may write its charger's switch. POSIX sh as mksh + toybox (or dash, busybox) run it.
#
#   charge.sh hold SECONDS   stops charging; charging continues by itself after SECONDS unless it is held again before
#   charge.sh allow          charging continues; nothing to do where nothing was held
#   charge.sh state          prints `held NODE` or `nothing`
#
# Prints one line: `held NODE`, `allowed NODE`, `nothing`, `no-root`, `no-switch` or, with exit code 1, `failed NODE`. A reboot
# gives every node its own value again. Kernels have different switches; each line of the table is NODE, the value that
# charges, the value that does not. Those that continue feeding the phone from the cable stand first: with `input_suspend` it
# drains its battery, which is why nothing is held without a time.
# shellcheck disable=SC1091,SC2154  # sourced, and what it sets
. "${0%/*}/processes.sh"

HELD=${0%/bin/*}/charge    # boot, node, the value that charges, and a token of the timer
SYS=${FARM_SYS:-/sys}
RETRY_S=${FARM_RETRY_S:-60}

table() {
    supply=$SYS/class/power_supply
    echo "$supply/battery/charging_enabled 1 0
$supply/battery/battery_charging_enabled 1 0
$supply/battery/charge_disable 0 1
$supply/battery/op_disable_charge 0 1
$SYS/class/oplus_chg/battery/mmi_charging_enable 1 0
$SYS/class/hw_power/charger/charge_data/enable_charger 1 0
$SYS/devices/platform/huawei_charger/enable_charger 1 0
$SYS/devices/platform/soc/soc:google,charger/charge_disable 0 1
$supply/battery/batt_slate_mode 0 1
$supply/battery/input_suspend 0 1
$SYS/class/qcom-battery/input_suspend 0 1"
}

get() {
    value=''
    if [ "$root" = su ]; then value=$(ask su -c "cat $1"); else { IFS= read -r value <"$1"; } 2>/dev/null; fi
}

put() {
    if [ "$root" = su ]; then ask su -c "echo $2 >$1"; else { echo "$2" >"$1"; } 2>/dev/null; fi
}

# set_to NODE VALUE: whether the node says so afterwards; a driver may refuse without an error.
set_to() {
    put "$1" "$2"
    get "$1"
    [ "$value" = "$2" ]
}

# read_held: what is noted, if its node and value are the table's: they reach a root shell, and anybody may write the note.
read_held() {
    boot='' node='' charging='' token=''
    [ -f "$HELD" ] && { read -r boot node charging token <"$HELD"; } 2>/dev/null # another call may remove it here
    [ -n "$token" ] || return 1
    case "
$(table)" in *"
$node $charging "*) ;; *) return 1 ;; esac
}

allow() {
    read_held || {
        echo nothing
        return
    }
    find_root
    if [ "$boot" != "$(boot_id)" ] || set_to "$node" "$charging"; then
        rm -f "$HELD"
        echo "allowed $node"
    else
        echo "failed $node"
        exit 1
    fi
}

state() {
    if read_held && [ "$boot" = "$(boot_id)" ]; then echo "held $node"; else echo nothing; fi
}

# expire SECONDS TOKEN NODE CHARGING: what it must know it is told, for our folder may be gone by then. Until it worked: nobody
# else makes the phone charge. Another token is a later hold, with a timer of its own.
expire() {
    sleep "$1"
    wanted=$2
    while ! read_held || [ "$token" = "$wanted" ]; do
        find_root
        if set_to "$3" "$4"; then
            rm -f "$HELD"
            return
        fi
        sleep "$RETRY_S"
    done
}

hold() {
    find_root
    [ -n "$root" ] || {
        echo no-root
        return
    }
    token=$$-$(date +%s)
    table | (
        while read -r node charging held; do
            get "$node"
            [ "$value" = "$charging" ] || [ "$value" = "$held" ] || continue
            # The way back is on the phone's storage, whole, before the way there is taken.
            echo "$(boot_id) $node $charging $token" >"$HELD.$$" && mv -f "$HELD.$$" "$HELD"
            if set_to "$node" "$held"; then
                echo "held $node"
                start_timer "$1" "$token" "$node" "$charging"
                exit 0
            fi
            put "$node" "$charging"
            rm -f "$HELD"
        done
        exit 1
    ) || echo no-switch
}

start_timer() {
    if command -v setsid >/dev/null; then
        setsid sh "$0" expire "$@" </dev/null >/dev/null 2>&1 &
    else
        (trap '' HUP && exec sh "$0" expire "$@") </dev/null >/dev/null 2>&1 &
    fi
}

case $1 in
hold) hold "$2" ;;
allow) allow ;;
state) state ;;
expire)
    shift
    expire "$@"
    ;;
*) exit 2 ;;
esac
