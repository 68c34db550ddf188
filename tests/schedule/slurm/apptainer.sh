#!/bin/sh
echo "$6 $7 $8" >> "$0.log"
[ "$1 $2 $3 $4" = "exec --nv --bind {scratch}" ] && [ -f "$5" ] && [ "$6" = python ] || exit 9
[ "$HF_HUB_OFFLINE $https_proxy" = "1 {proxy}" ] || exit 9
shift 6
exec {python} "$@"
