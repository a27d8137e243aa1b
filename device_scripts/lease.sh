#!/system/bin/sh
# Before and after a person has the phone. POSIX sh as mksh + toybox (or dash, busybox) run it.
#
#   lease.sh begin          notes what is there: files below the folder we live in, and the shell user's processes
#   lease.sh clean [HASH]   kills what the shell user runs and removes files beside ours that were not noted
#
# `begin` prints `begun HASH`, or `begun before HASH` when a lease was never cleaned: its older note holds. HASH is the noted
# processes' own, empty where there is no sha256sum. `clean` prints `cleaned killed=N removed=N left=N` (left: files that
# cannot be removed), or `failed ...` naming what does not die. No file of before is touched, nor any without a note; a changed
# or removed one cannot be told or brought back. Processes are spared by a note of this boot with that HASH alone: whoever had
# the phone could write to it. Not by their names, which they choose themselves: the RPC server and its followers must have ended.
# shellcheck disable=SC1091,SC2154  # sourced, and what it sets
. "${0%/*}/processes.sh"

ROOT=${0%/bin/*}    # the scripts live in ROOT/bin, people's files beside ROOT
NOTE=$ROOT/lease
LC_ALL=C            # byte order, whatever the names are
export LC_ALL

# files: everything beside ROOT, each name ended by NUL.
files() {
    find . -path "./${ROOT##*/}" -prune -o ! -path . -print0 2>/dev/null | sort -z
}

# new_files: those that were not noted. Noted ones come twice or more.
new_files() {
    files >"$NOTE/files.now"
    sort -z "$NOTE/files" "$NOTE/files" "$NOTE/files.now" | uniq -z -u
}

# context_of PID: its SELinux context. adbd, itself a process of the shell user, and the system have others than a shell.
context_of() {
    context=''
    { read -r context <"/proc/$1/attr/current"; } 2>/dev/null
    context=${context%%[!a-zA-Z0-9_:,.-]*}    # some kernels end it with NUL
}

# on_phone: whether this is a phone's kernel, or a virtual phone that marks its processes. Anywhere else a process that was
# not there before may be anybody's.
on_phone() {
    context_of self
    own_context=$context
    [ -n "$FARM_BOOT_ID_FILE" ] || [ "$(id -u)" = 2000 ] || case $own_context in u:r:*) ;; *) return 1 ;; esac
}

# says PID FILE TEXT: whether /proc/PID/FILE holds TEXT.
says() {
    grep -qF -e "$3" "/proc/$1/$2" 2>/dev/null
}

# farms PID: whether it says of itself that it runs from ROOT or reads a phone's health over adb. Nothing is spared for that.
farms() {
    says "$1" cmdline "$ROOT/bin/" || says "$1" cmdline '==farm:'
}

# charges PID: whether it lets the phone charge again later. Only root holds charging back, and who has root hides anyway.
charges() {
    [ -n "$root" ] && says "$1" cmdline "$ROOT/bin/charge.sh"
}

# theirs: the shell user's living processes, without those of our session and what started it, as PID:TICKS lines.
theirs() {
    stat_of $$
    own_session=$session ancestors=' '
    while [ "$parent" -gt 0 ]; do
        ancestors="$ancestors$parent "
        stat_of "$parent" || break
    done
    marked=''    # of a virtual phone: its processes' files, a line each
    [ -z "$FARM_BOOT_ID_FILE" ] || marked="
$(grep -lF -e "FARM_BOOT_ID_FILE=$FARM_BOOT_ID_FILE" /proc/[0-9]*/environ 2>/dev/null)
"
    for dir in /proc/[0-9]*; do
        pid=${dir#/proc/}
        case $marked in
        '' | *"
$dir/environ
"*) ;;
        *) continue ;;
        esac
        kill -0 "$pid" 2>/dev/null || continue
        stat_of "$pid" || continue
        case $state in Z | X) continue ;; esac
        [ "$session" != "$own_session" ] || continue
        case $ancestors in *" $pid "*) continue ;; esac
        context_of "$pid"
        [ "$context" = "$own_context" ] || continue
        ! charges "$pid" || continue
        echo "$pid:$ticks"
    done
}

# read_note: sets noted, the processes noted, and its hash; that is empty where the phone has no sha256sum. Read once: what
# is hashed is what counts.
read_note() {
    noted=$(cat "$NOTE/processes" 2>/dev/null)
    hash=$({ printf '%s\n' "$noted" | sha256sum | cut -c 1-64; } 2>/dev/null)
}

begin() {
    if [ -e "$NOTE/boot" ]; then
        read_note
        echo "begun before $hash"
        return
    fi
    rm -rf "$NOTE"
    mkdir -p "$NOTE" || exit 1
    files >"$NOTE/files"
    echo none >"$NOTE/processes"    # an empty file of patterns would match everything to some greps
    root=''
    if on_phone; then theirs >>"$NOTE/processes"; fi
    boot_id >"$NOTE/boot"    # last: a note without it is half a note
    read_note
    echo "begun $hash"
}

# kill_theirs: SIGKILL until none of them is left. Sets killed, and left_alive when some do not go.
kill_theirs() {
    killed=0 round=0 left_alive='' spared=none    # an empty pattern would match everything to some greps
    on_phone || return 0
    root=''
    [ ! -e "$ROOT/charge" ] || find_root
    read_note
    # After a reboot all numbers are new.
    if [ -n "$1" ] && [ "$1" = "$hash" ] && [ "$(boot_id)" = "$(cat "$NOTE/boot" 2>/dev/null)" ]; then spared=$noted; fi
    while [ "$round" -lt "$REAP_ROUNDS" ]; do
        doomed=$(theirs | grep -vxF -e "$spared")
        [ -n "$doomed" ] || return 0
        for each in $doomed; do
            [ "$round" != 0 ] || farms "${each%:*}" || killed=$((killed + 1))
            kill -s KILL "${each%:*}" 2>/dev/null
        done
        nap
        round=$((round + 1))
    done
    left_alive=$doomed
    return 1
}

# remove_strays: what farm never puts beside its own, and what programs wrote. Below run, bin, bundles and programs whoever makes those again removes it.
remove_strays() {
    for each in "$ROOT"/* "$ROOT"/.[!.]* "$ROOT"/..?*; do
        case ${each##*/} in
        bin | bundles | programs | run | start.lock | lease | quiesce | quiesce.lock | charge) ;;
        *) rm -rf "$each" ;;
        esac
    done
    rm -rf "$ROOT"/programs/work[0-9]
}

clean() {
    if ! kill_theirs "$1"; then
        echo "failed processes do not die:" "$left_alive" "(stuck in a driver: only a reboot helps)"
        exit 1
    fi
    remove_strays
    if [ ! -e "$NOTE/boot" ]; then
        echo "cleaned killed=$killed removed=0 left=0"
        return
    fi
    new_files >"$NOTE/files.new"
    if [ -s "$NOTE/files.new" ]; then
        # A folder comes before what it holds, so most are gone when it is their turn.
        xargs -0 rm -rf -- <"$NOTE/files.new" 2>/dev/null
        new_files >"$NOTE/files.left"
        if [ -s "$NOTE/files.left" ]; then
            xargs -0 chmod -R u+rwx -- <"$NOTE/files.left" 2>/dev/null
            xargs -0 rm -rf -- <"$NOTE/files.left" 2>/dev/null
        fi
    fi
    removed=$(grep -zc '' <"$NOTE/files.new") left=$(new_files | grep -zc '')
    rm -rf "$NOTE"
    echo "cleaned killed=$killed removed=$((removed - left)) left=$((left))"
}

cd "${ROOT%/*}" || exit 1
case ${1-} in
begin) begin ;;
clean) clean "${2-}" ;;
*)
    echo "failed usage: lease.sh begin | clean [HASH]"
    exit 2
    ;;
esac
