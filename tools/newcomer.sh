#!/usr/bin/env bash
# Run README's two commands as a newcomer does: as an ordinary user of a bare Debian that has Python, make and a package
# index, and no git, compiler, SLURM or PostgreSQL. Run it by hand before a release, as root (for debootstrap and chroot):
#
#   tools/newcomer.sh FOLDER [COMMAND ...]      COMMAND: what to run in the checkout; default: both, quickstart first
#
# FOLDER is made once and can be used again (about 2 GB). What is committed in this checkout is what is tried.
# Environment: SUITE (bookworm), MIRROR, TORCH_INDEX as in the Makefile, BIND (folders to show read-only inside, such as a
# folder of wheels that PIP_FIND_LINKS names). pip's settings (PIP_*, /etc/pip.conf) and certificates are taken along.
set -euo pipefail
usage() { sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 2; }
[ $# -ge 1 ] && [ "${1#-}" = "$1" ] || usage
[ "$(id -u)" = 0 ] || { echo "newcomer.sh: debootstrap and chroot need root" >&2; exit 2; }
command -v debootstrap >/dev/null || { echo "newcomer.sh: needs debootstrap: apt-get install debootstrap" >&2; exit 2; }

root=$(realpath -m "$1")
shift
[ $# -gt 0 ] || set -- sh -c 'make quickstart && make test'
source=$(cd "$(dirname "$0")/.." && pwd)

# A folder that is half made is made anew.
if [ ! -e "$root/.complete" ]; then
    rm -rf "$root"
    debootstrap --variant=minbase --include=python3,python3-venv,make,ca-certificates \
        "${SUITE:-bookworm}" "$root" "${MIRROR:-http://deb.debian.org/debian}"
    chroot "$root" useradd --create-home --shell /bin/bash newcomer
    touch "$root/.complete"
fi

mounts=()
leave() { for place in "${mounts[@]}"; do umount --lazy "$place"; done; }
trap leave EXIT
show() { # show TYPE-OR-FOLDER PLACE: mount it inside, and take it away again at the end
    mkdir -p "$root$2"
    case $1 in
        proc | tmpfs) mount -t "$1" "$1" "$root$2" ;;
        *) mount --bind "$1" "$root$2" && mount -o remount,bind,ro "$root$2" ;;
    esac
    mounts=("$root$2" "${mounts[@]}")
}
show proc /proc
show tmpfs /dev/shm
for folder in ${BIND:-}; do show "$folder" "$folder"; done
for device in null zero random urandom tty; do
    [ -e "$root/dev/$device" ] || cp -a "/dev/$device" "$root/dev/$device"
done
cp /etc/resolv.conf /etc/hosts "$root/etc/"
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
[ ! -e /etc/pip.conf ] || cp /etc/pip.conf "$root/etc/"

# A fresh checkout; the environment that a failed try has installed is not kept.
home=$root/home/newcomer
rm -rf "$home/gpas_cli"
mkdir "$home/gpas_cli"
git -C "$source" archive HEAD | tar -x -C "$home/gpas_cli"
chroot "$root" chown -R newcomer: /home/newcomer

mapfile -t settings < <(env | grep -E '^(PIP_|SSL_CERT_FILE=|TORCH_INDEX=)' || true)
chroot "$root" setpriv --reuid newcomer --regid newcomer --init-groups --no-new-privs \
    env -i HOME=/home/newcomer USER=newcomer LANG=C.UTF-8 TERM="${TERM:-dumb}" PATH=/usr/local/bin:/usr/bin:/bin \
    "${settings[@]}" sh -c 'cd ~/gpas_cli && exec "$@"' sh "$@"
