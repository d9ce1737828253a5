#!/bin/sh
# nvcc for the virtual GPU: of the archs that it is asked for the last counts, and PTX with its lines is kept of it.
arch=100 value=
for arg; do
  shift
  case $value$arg in
  -gencode | --generate-code | -arch | --gpu-architecture | -code | --gpu-code) value=: ;;
  :* | -gencode=* | --generate-code=* | -arch=* | --gpu-architecture=* | -code=* | --gpu-code=*)
    value= number=$(printf %s "$arg" | sed -n 's/.*\(sm\|compute\)_\([1-9][0-9]*[af]\{0,1\}\).*/\2/p')
    arch=${number:-$arch} ;;
  *) set -- "$@" "$arg" ;;
  esac
done
exec 'NVCC' "$@" -cudart shared "-L${0%/*}/../lib64" "-gencode=arch=compute_$arch,code=[compute_$arch,sm_$arch]" --no-compress -lineinfo
