#!/bin/sh
# nvcc for the virtual GPU: compiles for the last arch given, and keeps PTX with line numbers. If it fails, its messages
# are appended to the file $FISUB_COMPILER_LOG.
arch=100 value=
for arg; do
  shift
  case $value$arg in
  -cudart | --cudart) value=-cudart= ;;
  -cudart=*) value= ;; # or the value of it
  --cudart=*) ;;
  -gencode | --generate-code | -arch | --gpu-architecture | -code | --gpu-code) value=: ;;
  :* | -gencode=* | --generate-code=* | -arch=* | --gpu-architecture=* | -code=* | --gpu-code=*)
    value= number=$(printf %s "$arg" | sed -n 's/.*\(sm\|compute\)_\([1-9][0-9]*[af]\{0,1\}\).*/\2/p')
    arch=${number:-$arch} ;;
  *) set -- "$@" "$arg" ;;
  esac
done
said=${FISUB_COMPILER_LOG:-/tmp/fisub-compiler}.$$
'NVCC' -Xcompiler -g1 "$@" -cudart shared "-L${0%/*}/../lib64" "-gencode=arch=compute_$arch,code=[compute_$arch,sm_$arch]" --no-compress -lineinfo 2>"$said"
code=$?
cat "$said" >&2
[ $code = 0 ] || cat "$said" >>"${FISUB_COMPILER_LOG:-/dev/null}"
rm -f "$said"
exit $code
