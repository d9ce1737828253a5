//go:build linux && cgo

package vgpu

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
)

// debugString returns an entry of .debug_str.
func debugString(label, text string) string {
	s := label + ":\n"
	for _, c := range []byte(text + "\x00") {
		s += fmt.Sprintf(".b8 %d\n", c)
	}
	return s
}

// TestPlaces checks the places of inlined instructions: the caller comes first, and two calls of a function have
// different places.
func TestPlaces(t *testing.T) {
	const load = "\n\t@%p1 ld.global.u32 %r2, [%rd1+4096];\n"
	for _, c := range []struct{ name, loc, want string }{
		{"not inlined", ".loc 1 57 9", "kernel.cu:57:9: kernel"},
		{"inlined", ".loc 1 57 9\n.loc 1 21 72, function_name $L__info_string0, inlined_at 1 57 9",
			"kernel.cu:57:9, in bar_sync at kernel.cu:21:72: kernel"},
		{"another call of the same", ".loc 1 58 9\n.loc 1 21 72, function_name $L__info_string0, inlined_at 1 58 9",
			"kernel.cu:58:9, in bar_sync at kernel.cu:21:72: kernel"},
		{"two deep", ".loc 1 60 3\n.loc 2 5 7, function_name $L__info_string1, inlined_at 1 60 3\n" +
			".loc 1 21 72, function_name $L__info_string0+0, inlined_at 2 5 7",
			"kernel.cu:60:3, in ns::stage at tile.cuh:5:7, in bar_sync at kernel.cu:21:72: kernel"},
		{"three deep", ".loc 1 60 3\n.loc 2 5 7, function_name $L__info_string1, inlined_at 1 60 3\n" +
			".loc 2 9 1, function_name $L__info_string1, inlined_at 2 5 7\n" +
			".loc 1 21 72, function_name $L__info_string0, inlined_at 2 9 1",
			"kernel.cu:60:3, in ns::stage at tile.cuh:9:1, in bar_sync at kernel.cu:21:72: kernel"},
		{"of a header of the toolchain", ".loc 1 57 9\n.loc 3 900 1, function_name $L__info_string0, inlined_at 1 57 9",
			"kernel.cu:57:9: kernel"},
		{"of nothing else", ".loc 3 900 1", "/cuda/include/cuda_fp16.hpp:900:1: kernel"},
		{"without a name", ".loc 1 21 72, function_name $L__missing, inlined_at 1 57 9",
			"kernel.cu:57:9, at kernel.cu:21:72: kernel"},
		{"a column that is not known", ".loc 1 99 9", "kernel.cu:99: kernel"},
		{"a column of an expansion", ".loc 1 57 100", "kernel.cu:57:50: kernel"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := &Machine{}
			mod, err := m.Load(`.version 9.0
.target sm_100
.address_size 64
.visible .entry _Z1kPi(.param .u64 x)
{
	.reg .pred %p<2>; .reg .b32 %r<9>; .reg .b64 %rd<9>;
	ld.param.u64 %rd1, [x];
	mov.u32 %r1, %tid.x;
	setp.eq.u32 %p1, %r1, 3;
	` + c.loc + load + `	ret;
}
	.file 1 "/cache/src/kernel.cu"
	.file 2 "/cache/src/tile.cuh"
	.file 3 "/cuda/include/cuda_fp16.hpp"
	.section .debug_str
	{
` + debugString("$L__info_string0", "_Z8bar_syncii") + debugString("$L__info_string1", "_ZN2ns5stageILi4EEEvPf") + "	}\n")
			if err != nil {
				t.Fatal(err)
			}
			mod.Rename = SourceName
			mod.Column = func(file string, line, col int) int {
				if file == "kernel.cu" && line == 99 {
					return 0
				}
				return min(col, 50+col%50)
			}
			k, err := mod.Kernel("_Z1kPi")
			if err != nil {
				t.Fatal(err)
			}
			x, _ := words(m, "x", 1)
			err = m.Run(k, Launch{Grid: [3]int{1, 1, 1}, Block: [3]int{32, 1, 1},
				Params: binary.LittleEndian.AppendUint64(nil, uint64(x))})
			if err == nil || !strings.HasPrefix(err.Error(), c.want+" k, block (0,0,0), thread (3,0,0): invalid read") {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}

func TestDemangled(t *testing.T) {
	for name, want := range map[string]string{
		"kernel":                        "kernel",
		"_Z4init6ParamsPi":              "init",
		"_ZN2gd6decodeEPKf":             "gd::decode",
		"_ZN12_GLOBAL__N_16decodeEPKf":  "decode",
		"_Z6kernelIfLi128ELb1EEvPKT_Pf": "kernel",
		"_ZN7cutlass13device_kernelINS_4gemm6kernel13GemmUniversalIiiEEEEvNT_6ParamsE": "cutlass::device_kernel",
		"_ZN4TileclERi": "Tile::operator()",
		"_ZN39_INTERNAL_0a18bf96_9_kernel_cu_d4fceba28bar_syncEii": "bar_sync",
		"_ZL5storeP6float4":         "store",
		"_Z":                        "_Z",
		"_Z9999999999x":             "_Z9999999999x",
		"__tvm_ffi_run":             "__tvm_ffi_run",
		strings.Repeat("_ZN", 1000): strings.Repeat("_ZN", 1000),
	} {
		if got := Demangled(name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

// TestRaceOfWarps has races in which one side is not a single thread: the message names its warp.
func TestRaceOfWarps(t *testing.T) {
	for _, c := range []struct{ name, body, want string }{
		{"reads of one word by a warp", `
	@%p1 st.shared.b32 [%r10], %r1;
	bar.sync 0;
	@%p2 bra $write;
	ld.shared.b32 %r2, [%r10];
	bra $done;
$write:
	add.u32 %r8, %r8, 1;
	setp.lt.u32 %p3, %r8, 20000;
	@%p3 bra $write;
	setp.eq.u32 %p3, %r1, 3;
	@%p3 st.shared.b32 [%r10], %r1;`, "thread (3,0,0): race on shared memory: nothing orders this write and the read " +
			"at an unknown line, warp 1 (threads (32,0,0) to (63,0,0))"},
		{"a bulk copy", `
	setp.eq.u32 %p3, %r1, 40;
	@%p3 st.shared.v4.b32 [%r10], {%r8, %r8, %r8, %r8};
	@%p2 bra $copy;
	bra $done;
$copy:
	add.u32 %r8, %r8, 1;
	setp.lt.u32 %p3, %r8, 20000;
	@%p3 bra $copy;
	@%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r10], 16;`, "warp 0 (threads (0,0,0) to (31,0,0)): race " +
			"on shared memory: nothing orders this read and the write at an unknown line, thread (40,0,0)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := hazard(t, c.body); !strings.Contains(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// TestMisalignedCopy runs cp.async.bulk with an address or size that is not a multiple of 16.
func TestMisalignedCopy(t *testing.T) {
	for _, c := range []struct{ name, copy, want string }{
		{"source", "[%r2], [%rd1+4], 16, [%r3]", "misaligned read: address 0x"},
		{"target", "[%r2+8], [%rd1], 16, [%r3]", "misaligned write: address 0x"},
		{"size", "[%r2], [%rd1], 24, [%r3]", "a copy of 24 bytes, not a multiple of 16"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := tensorKernel(t, `
	@%p1 mbarrier.init.shared.b64 [%r3], 1;
	@%p1 cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes `+c.copy+`;`, make([]uint32, 64), 4)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}
