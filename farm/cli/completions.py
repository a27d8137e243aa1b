"""`farm completions SHELL`: the script that makes TAB work there."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import typer

BASH = """\
# farm in bash. Load it with: source <(farm completions bash)
_farm() {
    local line
    COMPREPLY=()
    while IFS= read -r line; do
        if [[ $line == $'\\tfile' ]]; then
            compopt -o default
        else
            COMPREPLY+=("$line")
        fi
    done < <("${COMP_WORDS[0]}" __complete bash "${COMP_LINE:0:COMP_POINT}" 2>/dev/null)
    if [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *= ]]; then
        compopt -o nospace
    fi
}
complete -F _farm farm
"""
ZSH = """\
#compdef farm
# farm in zsh. Put it where $fpath looks, as _farm, or: source <(farm completions zsh)
_farm() {
    local line files=0
    local -a values
    for line in "${(@f)$("${words[1]}" __complete zsh "${(@Q)words[2,CURRENT]}" 2>/dev/null)}"; do
        if [[ $line == $'\\tfile' ]]; then
            files=1
        elif [[ -n $line ]]; then
            values+=("${${line%%$'\\t'*}//:/\\\\:}:${line#*$'\\t'}")
        fi
    done
    (( $#values )) && _describe -V farm values
    (( files )) && _files
}
if [[ ${funcstack[1]} == _farm ]]; then
    _farm "$@"
elif (( $+functions[compdef] )); then
    compdef _farm farm
fi
"""
FISH = """\
# farm in fish. Load it with: farm completions fish | source
function __farm_complete
    set -l words (commandline -opc)
    set -l typed (commandline -ct)
    for line in ($words[1] __complete fish $words[2..-1] "$typed" 2>/dev/null)
        if test "$line" = \\tfile
            __fish_complete_path "$typed"
        else
            echo -- $line
        end
    end
end
complete -c farm -k -f -a '(__farm_complete)'
"""


class Shell(StrEnum):
    """Shells that there is a script for."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


SCRIPTS = {Shell.BASH: BASH, Shell.ZSH: ZSH, Shell.FISH: FISH}


def completions(shell: Annotated[Shell, typer.Argument(help="bash, zsh or fish.")]) -> None:
    """Print the script that completes commands, options and names in a shell.

    Names of phones, jobs, keys, bundles and leases are asked of the daemon, for half a second at most; without a daemon
    none are offered.
    """
    sys.stdout.write(SCRIPTS[shell])
