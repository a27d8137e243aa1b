# shellcheck shell=sh
# Values of a phone that quiesce.sh changes, by KIND and PLACE: how each is asked for and set. Sourced.
# shellcheck disable=SC2034,SC2154  # value is for whoever asks, mode is theirs
WAKE_LOCK=farm_quiesce

# as_root LINE
as_root() {
    case $root in
    self) sh -c "$1" 2>/dev/null ;;
    su) ask su -c "$1" ;;
    *) return 1 ;;
    esac
}

# get KIND PLACE: sets value; '' when nobody says.
get() {
    value=''
    case $1 in
    global | system | secure) value=$(ask settings get "$1" "$2") ;;
    airplane) value=$(ask settings get global airplane_mode_on) ;;
    file) { IFS= read -r value <"$2"; } 2>/dev/null ;;
    screen)
        case $(ask dumpsys power) in
        *mSystemReady=false* | *mBootCompleted=false*) ;;    # a default
        *mWakefulness=Awake*) value=Awake ;;
        *mWakefulness=*) value=Asleep ;;
        esac
        ;;
    wakelock)
        value=$(cat "$2" 2>/dev/null || as_root "cat $2")
        case " $value " in *"$WAKE_LOCK"*) value=held ;; *) value=free ;; esac
        ;;
    doze) value=$(ask cmd deviceidle get force) ;;
    mode) value=$mode ;;    # nobody can ask for it
    esac
}

# put KIND PLACE VALUE
put() {
    case $1 in
    global | system | secure)
        if [ "$3" = null ]; then ask settings delete "$1" "$2"; else ask settings put "$1" "$2" "$3"; fi
        ;;
    airplane)
        # Android 11 has a command; before, the setting takes effect only with a broadcast that is root's.
        word=disable state=false
        [ "$3" != 1 ] || { word=enable state=true; }
        ask cmd connectivity airplane-mode "$word"
        get airplane radios
        [ "$value" = "$3" ] || as_root \
            "settings put global airplane_mode_on $3; am broadcast -a android.intent.action.AIRPLANE_MODE --ez state $state"
        ;;
    file) write_file "$2" "$3" ;;
    screen)
        key=223    # sleep; 224 wakes
        [ "$3" != Awake ] || key=224
        ask input keyevent "$key"
        ;;
    wakelock)
        file=$2
        [ "$3" = held ] || file=${2%lock}unlock
        write_file "$file" "$WAKE_LOCK"
        ;;
    doze)
        word=unforce
        [ "$3" != true ] || word='force-idle deep'
        # shellcheck disable=SC2086
        ask cmd deviceidle $word
        ;;
    mode)
        case $(ask sh -c "cmd power $2 $3 && echo taken") in *Failed*) ;; *taken*) mode=$3 ;; esac
        ;;
    esac >/dev/null 2>&1
}

write_file() {
    if [ -w "$1" ]; then { echo "$2" >"$1"; } 2>/dev/null; else as_root "echo $2 >$1"; fi
}
