# For the other scripts: pagedrun_environment ROOT EXTRA [ARGUMENTS] leaves a working ROOT/.venv, with pagedrun's
# packages and those of EXTRA ("" or "dev"). Once that is done it costs little; what there is to do
# the first time is in environment.py.

pagedrun_environment() {
    export PAGEDRUN_AUTO_SETUP=1
    stamp=$1/.venv/.pagedrun${2:+-$2}
    # The stamp holds the folder and pyproject.toml as they were: a checkout that was moved, or asks for other
    # packages now, is set up again.
    # An environment whose python no longer runs, or no longer finds pagedrun, is repaired.
    if [ -r "$stamp" ] &&
        [ "$(cat -- "$stamp")" = "$(printf '%s\n' "$1" && cat -- "$1/pyproject.toml")" ] &&
        "$1/.venv/bin/python" -I -c 'import importlib.util as u, sys; sys.exit(not u.find_spec("pagedrun"))' \
            >/dev/null 2>&1; then
        return
    fi
    python=
    for name in python3 python3.14 python3.13 python3.12 python3.11 python3.10; do
        if command -v "$name" >/dev/null 2>&1 &&
            "$name" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
            python=$name
            break
        fi
    done
    if [ -z "$python" ]; then
        echo "error: pagedrun needs Python 3.10 or newer, and there is none on the PATH" >&2
        echo "hint:  Debian, Ubuntu: sudo apt install python3 python3-venv" >&2
        exit 1
    fi
    "$python" -I "$1/scripts/environment.py" "$@"
}
