#!/usr/bin/env bash
# A new user's first run, by the clock: README's commands, word by word, on a bare Debian, as root.
#
#     debootstrap --variant=minbase --include=ca-certificates,python3-venv,python3-pip,g++ bookworm ROOT
#     scripts/release 0.1.0 amd64
#     docs/results/first-run/run.sh ROOT dist/release/fisub-*.whl >docs/results/first-run/output.txt
#
# The home folder is new, so that nvcc is fetched too. pip is told where the wheel lies, as it is on no index. ROOT has the
# network and, where a proxy takes them, pip's settings.
set -euo pipefail
root=$1 wheel=$2
rm -rf "$root/home/new"
mkdir -p "$root/home/new"
cp "$wheel" "$root/home/new"
cat >"$root/home/new/steps" <<'STEPS'
cd
began=$(date +%s.%N)
step() {
  local start status=0
  start=$(date +%s.%N)
  printf '\n$ %s\n' "$*"
  "$@" 2>&1 || status=$?
  awk -v a="$start" -v b="$(date +%s.%N)" -v s="$status" 'BEGIN { printf "[%.1f s, exit status %d]\n", b - a, s }'
}
step python3 -m venv venv
PATH=$HOME/venv/bin:$PATH
step pip install fisub
step fisub init my-kernel --definition gdn_decode_qk4_v8_d128_k_last --author me
step fisub -C my-kernel check
step fisub -C my-kernel local
cd my-kernel
step fisub report last
awk -v a="$began" -v b="$(date +%s.%N)" 'BEGIN { printf "\nwhole: %.1f s\n", b - a }'
STEPS
. "$root/etc/os-release"
echo "$PRETTY_NAME, $(nproc) cores, load $(cut -d ' ' -f 1 /proc/loadavg), $(date -u +%F)"
unshare --mount sh -c 'mount -t proc proc "$0/proc" && exec chroot "$0" "$@"' "$root" \
  /usr/bin/env -i HOME=/home/new PIP_FIND_LINKS=/home/new PIP_DISABLE_PIP_VERSION_CHECK=1 PATH=/usr/bin:/bin LANG=C.UTF-8 TERM=dumb bash /home/new/steps
