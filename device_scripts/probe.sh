#!/system/bin/sh
# One look at a phone's health: sections of lines, each under a `==farm:NAME` line, the last one `==farm:end`.
# POSIX sh as mksh + toybox (or dash, busybox, old toolbox) run it. It writes nothing and needs no root. What a phone does not
# have or does not let us read is simply not printed; farm.devices.health.probe names it. Files are read by the shell itself: a phone has
# up to 79 thermal zones, and `cat` would fork twice for each. Farm sends this text as the command itself (comments and
# indentation removed, so that it fits 4096 bytes, the oldest adbd's packet), with the sections it wants in $SECTIONS.
# Sections that may block in a driver stand last: when the host gives up waiting, it has all that came before.

# show DIR NAME...: DIR/NAME=first line, of each file that can be read.
show() {
    dir=$1
    shift
    for name in "$@"; do
        line=''
        { IFS= read -r line <"$dir/$name"; } 2>/dev/null
        [ -z "$line" ] || echo "$dir/$name=$line"
    done
}

# ask COMMAND...: bounded where the phone has `timeout`; system_server may be stuck while the shell is not.
ask() {
    if command -v timeout >/dev/null; then timeout 4 "$@"; else "$@"; fi 2>/dev/null
}

p_boot() {
    { read -r boot <"${FARM_BOOT_ID_FILE:-/proc/sys/kernel/random/boot_id}"; } 2>/dev/null
    if [ -z "$boot" ]; then
        while read -r word value rest; do
            [ "$word" != btime ] || boot=btime-$value
        done </proc/stat
    fi 2>/dev/null
    echo "boot_id=$boot"
    show /proc uptime loadavg
    [ -n "$line" ] || uptime 2>/dev/null
}

p_memory() {
    while read -r word value rest; do
        case $word in
        MemTotal: | MemFree: | MemAvailable: | Buffers: | Cached:) echo "$word $value $rest" ;;
        SwapCached:) break ;;
        esac
    done </proc/meminfo
} 2>/dev/null

p_cpu() {
    cd /sys/devices/system/cpu || return
    set -- cpufreq/policy[0-9]*
    [ -d "$1" ] || set -- cpu[0-9]*/cpufreq
    for each in "$@"; do
        read -r first rest <"$each/related_cpus"
        case $each in
        cpufreq/* | "cpu$first/"*)
            show "$PWD/$each" related_cpus scaling_cur_freq scaling_min_freq scaling_max_freq cpuinfo_max_freq scaling_governor
            ;;
        esac
    done
} 2>/dev/null

p_battery() {
    ask dumpsys battery
}

p_thermal() {
    ask dumpsys thermalservice
}

p_data() {
    df /data 2>/dev/null
}

# The busiest, those that run or are stuck now, and whatever has to do with the RPC server. %CPU is of a process's whole life.
p_processes() {
    echo "self=$$"
    server=none supervisor=none
    while IFS='=' read -r name value; do
        case $name in
        # Numbers of another boot are anybody's now.
        boot) [ "$value" = "${boot:-$value}" ] || break ;;
        pid) server=$value ;;
        supervisor) supervisor=$value ;;
        esac
    done </data/local/tmp/farm/run/state
    echo "server=$server"
    echo "supervisor=$supervisor"
    # Android 6 and 7 answer "bad pid '-A'". Each `ps` is a child of this shell, which the host leaves out.
    rows=$(exec ps -A -k -%CPU -o PID,PPID,PGID,S,%CPU,RSS,NAME)
    for option in -A ''; do
        case $rows in *PPID*[0-9]*) break ;; esac
        rows=$(exec ps ${option:+"$option"})
    done
    if command -v sed >/dev/null; then
        echo "$rows" |
            sed -e 1,15b -e /tvm_rpc/b -e '/ [RD] /b' -e "/^ *$server /b" -e "/ $server /b" -e "/^ *$supervisor /b" -e d
    else
        echo "$rows"
    fi
} 2>/dev/null

p_supply() {
    cd /sys/class/power_supply || return
    for each in battery bms *bat*; do
        while read -r line; do echo "$each/$line"; done <"$each/uevent"
        show "$each" cycle_count charge_full charge_full_design current_now
    done
} 2>/dev/null

p_zones() {
    cd /sys/class/thermal || return
    for zone in thermal_zone*; do
        kind='' temp=''
        IFS= read -r kind <"$zone/type"
        IFS= read -r temp <"$zone/temp"
        [ -z "$temp" ] || echo "$zone $kind=$temp"
    done
} 2>/dev/null

p_gpu() {
    for each in /sys/class/kgsl/kgsl-3d0 /sys/class/misc/mali0/device /sys/kernel/gpu /sys/kernel/ged/hal; do
        [ ! -d "$each" ] || show "$each" gpuclk clock_mhz max_gpuclk gpu_available_frequencies gpu_busy_percentage gpubusy \
            thermal_pwrlevel temp gpu_clock gpu_max_clock gpu_min_clock gpu_governor gpu_busy gpu_tmu clock utilization \
            gpu_utilization
    done
    for each in /sys/class/kgsl/kgsl-3d0/devfreq /sys/class/misc/mali0/device/devfreq/* /sys/class/devfreq/*[mg][ap][lu]*; do
        [ ! -d "$each" ] || show "$each" cur_freq min_freq max_freq governor available_frequencies gpu_load
    done
}

# A user build says no at once; then two programs more need not be started.
p_kernel() {
    log=$(dmesg 2>&1)
    case $log in
    "" | dmesg:* | /*dmesg:* | sh:*) echo "$log" ;;
    *)
        echo "$log" |
            grep -iE '(kgsl|mali|gpu|pvr|panfrost).*(fault|hang|time[do]|lockup|reset|error|to idle)| AS[0-9]' | tail -n 20
        ;;
    esac
} 2>/dev/null

boot=''
for section in ${SECTIONS:-boot memory cpu data battery thermal processes kernel supply zones gpu}; do
    echo "==farm:$section"
    "p_$section"
done
echo "==farm:end"
