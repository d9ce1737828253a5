#!/usr/bin/env bash
# Collects the metrics of metrics.txt with Nsight Compute, on a machine with an H100.
#
#     docs/results/counters/measure.sh OUTPUT [STAGE...]        # in the repository's root
#
# Stages, by default all in this order, each with a file OUTPUT/STAGE.tar.gz that has one CSV per program:
#
#   programs  the compiled programs in $PROGRAMS; metrics of the groups exact and PTX
#   projects  submissions of this repository and in $PROJECTS, by fisub profile; the same metrics
#   triton    triton_kernels.py, and $PROJECTS/triton-decode; the same metrics
#   more      the programs again; metrics of the group "GPU only"
#   source    ncu's section SourceCounters of four programs, per instruction
#
# No measurement starts after $LIMIT seconds, by default 340. A failed measurement does not end the script. PROGRAM.csv
# is ncu's raw page, PROGRAM.opcodes.csv has executed instructions per opcode, PROGRAM.source.csv the source page, and
# PROGRAM.log ncu's output. setup.tar.gz has the metrics that this ncu does not know, and those that it lists.
set -u -o pipefail

here=$(cd "$(dirname "$0")" && pwd)
programs=${PROGRAMS:-$here/programs} projects=${PROJECTS:-$here/projects} fisub=${FISUB:-$PWD/dist/fisub}
limit=${LIMIT:-340}
mkdir -p "$1"
out=$(cd "$1" && pwd)
shift
[ $# -gt 0 ] || set -- programs projects triton more source
ncu=$(command -v ncu || ls /usr/local/cuda/bin/ncu /opt/nvidia/nsight-compute/*/ncu 2>/dev/null | tail -n 1)
[ -n "$ncu" ] || { echo "measure.sh: ncu: not found" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
flags=(--cache-control all --clock-control none --import-source no --force-overwrite)
large=sass__inst_executed_per_opcode,sass__inst_executed_per_opcode_with_modifier_all
large=$large,sass__thread_inst_executed_true_per_opcode

# list GROUP...: the known metrics of the groups, separated by commas.
list() {
  local group
  for group; do
    awk -v want="# $group" '/^#/ { on = $0 == want; next } on' "$here/metrics.txt"
  done | grep -Fxvf "$work/setup/unknown.txt" | paste -sd,
}

# drop_unknown: writes the metrics that this ncu refuses to unknown.txt: those that it does not list, and those named
# in its errors.
drop_unknown() {
  local collection metric try
  mkdir "$work/setup"
  : > "$work/setup/unknown.txt"
  for collection in profiling launch source; do
    timeout 60 "$ncu" --query-metrics --query-metrics-collection "$collection"
  done > "$work/query.txt" 2>&1
  gzip -c "$work/query.txt" > "$work/setup/query.txt.gz"
  awk '{ print $1 }' "$work/query.txt" | sort -u > "$work/known.txt"
  if [ "$(wc -l < "$work/known.txt")" -gt 500 ]; then
    grep '\.' "$here/metrics.txt" | while read -r metric; do
      grep -Fqx -e "${metric%%.*}" -e "$metric" "$work/known.txt" || echo "$metric"
    done >> "$work/setup/unknown.txt"
  fi
  for try in $(seq 20); do
    timeout 90 "$ncu" "${flags[@]}" --launch-count 1 --metrics "$(list exact PTX 'GPU only')" \
      "$programs/global_strides" > "$work/try.txt" 2>&1
    grep -E '==(ERROR|WARNING)==' "$work/try.txt" | grep -oE '[a-z0-9_]+__[a-z0-9_.]+|[a-z0-9]+(_[a-z0-9]+)+' |
      sed 's/\.$//' | sort -u > "$work/named.txt"
    grep -v '^#' "$here/metrics.txt" | grep -Fxvf "$work/setup/unknown.txt" | while read -r metric; do
      ! grep -Fqx -e "${metric%%.*}" -e "$metric" "$work/named.txt" || echo "$metric"
    done > "$work/refused.txt"
    [ -s "$work/refused.txt" ] || break
    cat "$work/refused.txt" >> "$work/setup/unknown.txt"
  done
  mv "$work/try.txt" "$work/setup/try.txt"
  tar -C "$work" -czf "$out/setup.tar.gz" setup
  echo "$(wc -l < "$work/setup/unknown.txt") unknown metrics, $try tries, at $SECONDS s"
}

# left: the longest time of a measurement that starts now, in seconds.
left() {
  local left=$((limit - SECONDS + 5))
  echo $((left < 120 ? left : 120))
}

# pages REPORT NAME: writes the pages of a report as CSV.
pages() {
  "$ncu" --import "$1" --page raw --csv --print-units base > "$2.csv" 2> "$2.errors"
  "$ncu" --import "$1" --page raw --csv --print-units base --metrics "$large" --print-metric-instances values \
    > "$2.opcodes.csv" 2>> "$2.errors"
  "$ncu" --import "$1" --page source --csv --print-source sass > "$2.source.csv" 2>> "$2.errors"
  rm -f "$1"
}

# measure STAGE NAME COMMAND...: runs a command below ncu, with the options in the array options.
measure() {
  local dir=$work/$1 name=$2 start=$SECONDS status=0
  mkdir -p "$dir"
  if [ "$SECONDS" -ge "$limit" ]; then
    echo "$1 $name: not measured, no time left"
    return
  fi
  shift 2
  timeout -s INT -k 15 "$(left)" "$ncu" "${flags[@]}" "${options[@]}" --export "$dir/$name.ncu-rep" "$@" \
    > "$dir/$name.log" 2>&1 || status=$?
  echo "${dir##*/} $name: status $status, $((SECONDS - start)) s, at $SECONDS s"
  [ "$status" = 0 ] || tail -n 5 "$dir/$name.log" | cut -c 1-300
  [ ! -e "$dir/$name.ncu-rep" ] || pages "$dir/$name.ncu-rep" "$dir/$name" &
}

# A program that profile starts instead of ncu. Without metrics, profile only builds the submission.
profiler() {
  mkdir -p "$work/$1"
  cat > "$work/$1/ncu" <<END
#!/usr/bin/env bash
metrics='$2'
[ -n "\$metrics" ] || exit 1
case " \$* " in *" --import "*) exec '$ncu' "\$@" ;; esac
args=()
while [ \$# -gt 0 ]; do
  case \$1 in
    --set) shift ;;
    --metrics) args+=(--metrics "\$2,\$metrics"); shift ;;
    *) args+=("\$1") ;;
  esac
  shift
done
exec '$ncu' --cache-control all --import-source no "\${args[@]}"
END
  chmod +x "$work/$1/ncu"
}

# Folder, set and workload of the submissions to profile.
submissions() {
  cat <<END
decode-1 . default 96825aea
decode-64 . batches d615f2dd
prefill-35 solution-prefill default 05fbc6ef
prefill-202 solution-prefill default 8d74405a
family-pool solution/family/gdn_mtp_pool_qk4_v8_d128_k_last default -
family-bf16 solution/family/gdn_decode_bf16_state_qk4_v8_d128_k_last default -
warp-8-rows solution/baselines/warp-8-rows default 96825aea
warp-per-row solution/baselines/warp-per-row default 96825aea
prefill-plain solution/baselines/prefill-plain default 05fbc6ef
init-decode $projects/cuda-decode default 96825aea
init-prefill $projects/cuda-prefill default 05fbc6ef
init-attention $projects/cuda-attention default -
init-indexer $projects/cuda-indexer default -
END
}

profile_projects() {
  local name folder set workload start status report
  profiler build ''
  profiler measure "$(list exact PTX)"
  mkdir -p "$work/projects"
  while read -r name folder set workload; do
    PATH=$work/build:$PATH timeout 100 "$fisub" -C "$folder" profile --device cuda --set "$set" \
      > "$work/projects/$name.build" 2>&1 < /dev/null &
  done < <(submissions | awk '!seen[$2]++')
  wait
  echo "submissions built at $SECONDS s"
  while read -r name folder set workload; do
    start=$SECONDS status=0
    if [ "$SECONDS" -ge "$limit" ]; then
      echo "projects $name: not measured, no time left"
      continue
    fi
    touch "$work/started"
    [ "$workload" = - ] && workload= || workload="--workload $workload"
    # shellcheck disable=SC2086 # no option, or an option and its value
    PATH=$work/measure:$PATH timeout -k 15 "$(left)" "$fisub" -C "$folder" profile --device cuda --set "$set" \
      $workload > "$work/projects/$name.log" 2>&1 < /dev/null || status=$?
    echo "projects $name: status $status, $((SECONDS - start)) s, at $SECONDS s"
    [ "$status" = 0 ] || tail -n 5 "$work/projects/$name.log" | cut -c 1-300
    report=$(find "$folder/.fisub/runs" -name profile.ncu-rep -newer "$work/started" | head -n 1)
    [ -z "$report" ] || { cp "$report" "$work/projects/$name.ncu-rep" &&
      pages "$work/projects/$name.ncu-rep" "$work/projects/$name" & }
  done < <(submissions)
}

# The programs: those with the most important kernels first.
mapfile -t order < <(printf '%s\n' global_strides global_patterns global_widths shared_words shared_vectors ldmatrix \
  atomics matrices async_copies matmul elementwise control spaces arithmetic
  cd "$programs" && ls)
mapfile -t order < <(printf '%s\n' "${order[@]}" | awk '!seen[$0]++')

drop_unknown
for stage; do
  options=(--metrics "$(list exact PTX)")
  case $stage in
    programs | more)
      [ "$stage" = programs ] || options=(--metrics "$(list 'GPU only')")
      for program in "${order[@]}"; do
        measure "$stage" "$program" "$programs/$program"
      done
      ;;
    projects) profile_projects ;;
    triton)
      options+=(--profile-from-start off)
      export TRITON_CACHE_DIR=$work/triton-cache
      mkdir -p "$TRITON_CACHE_DIR" "$work/triton"
      measure triton kernels python3 "$here/triton_kernels.py"
      measure triton decode python3 "$here/triton_kernels.py" "$projects/triton-decode/solution/triton/kernel.py"
      find "$TRITON_CACHE_DIR" -name '*.ptx' -exec cp --backup=numbered {} "$work/triton" \;
      ;;
    source)
      options=(--section SourceCounters)
      for program in spaces control matmul elementwise; do
        measure source "$program" "$programs/$program"
      done
      ;;
    *)
      echo "measure.sh: no stage $stage" >&2
      continue
      ;;
  esac
  wait
  tar -C "$work" -czf "$out/$stage.tar.gz" "$stage"
  echo "$stage: $(stat -c %s "$out/$stage.tar.gz") bytes, at $SECONDS s"
done
