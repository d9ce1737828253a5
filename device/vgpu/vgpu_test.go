//go:build linux && cgo

package vgpu

import (
	"encoding/binary"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"fisub/device"
)

// TestFiles decodes the PTX files in $VGPU_PTX and logs unsupported instructions.
func TestFiles(t *testing.T) {
	for _, path := range filepathGlob(t) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		m := &Machine{}
		t.Cleanup(m.drop)
		mod, err := m.Load(string(text))
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		parse := time.Since(start)
		lacks := map[string]int{}
		n := 0
		for _, name := range mod.Names() {
			k, err := mod.Kernel(name)
			if err != nil {
				t.Errorf("%s: %v", path, err)
				continue
			}
			for _, f := range k.prog.funcs {
				n += len(f.code)
			}
			for _, l := range k.Lacks() {
				lacks[l]++
			}
		}
		t.Logf("%s: %d kernels, %d instructions, parsed in %v, decoded in %v; lacks %v", path, len(mod.Names()), n, parse,
			time.Since(start)-parse, lacks)
	}
}

func filepathGlob(t *testing.T) []string {
	dir := os.Getenv("VGPU_PTX")
	if dir == "" {
		t.Skip("VGPU_PTX is not set")
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		all = append(all, dir+"/"+e.Name())
	}
	return all
}

// words allocates device memory and fills it with values.
func words(m *Machine, name string, values ...uint32) (uintptr, []uint32) {
	p := m.Alloc(4*len(values), name)
	s := unsafe.Slice((*uint32)(at(p)), len(values))
	copy(s, values)
	return p, s
}

const simple = `
.version 9.0
.target sm_100
.address_size 64
.visible .entry scale(.param .u64 x, .param .u64 out, .param .u32 n)
{
	.reg .pred %p<3>;
	.reg .b32 %r<9>;
	.reg .b64 %rd<9>;
	ld.param.u64 %rd1, [x];
	ld.param.u64 %rd2, [out];
	ld.param.u32 %r1, [n];
	mov.u32 %r2, %ctaid.x;
	mov.u32 %r3, %ntid.x;
	mov.u32 %r4, %tid.x;
	mad.lo.s32 %r5, %r2, %r3, %r4;
	setp.ge.s32 %p1, %r5, %r1;
	@%p1 bra $done;
	mul.wide.s32 %rd3, %r5, 4;
	add.s64 %rd4, %rd1, %rd3;
	ld.global.u32 %r6, [%rd4];
	mul.lo.s32 %r7, %r6, 3;
	add.s64 %rd5, %rd2, %rd3;
	st.global.u32 [%rd5], %r7;
$done:
	ret;
}
`

func TestSimple(t *testing.T) {
	m := &Machine{}
	t.Cleanup(m.drop)
	mod, err := m.Load(simple)
	if err != nil {
		t.Fatal(err)
	}
	k, err := mod.Kernel("scale")
	if err != nil {
		t.Fatal(err)
	}
	values := make([]uint32, 1000)
	for i := range values {
		values[i] = uint32(i * 7)
	}
	x, _ := words(m, "x", values...)
	o, out := words(m, "out", make([]uint32, 1000)...)
	params := binary.LittleEndian.AppendUint64(nil, uint64(x))
	params = binary.LittleEndian.AppendUint64(params, uint64(o))
	params = binary.LittleEndian.AppendUint32(params, 1000)
	l := Launch{Grid: [3]int{8, 1, 1}, Block: [3]int{128, 1, 1}, Params: params}
	if err := m.Run(k, l); err != nil {
		t.Fatal(err)
	}
	for i, v := range out {
		if v != uint32(i*21) {
			t.Fatalf("at %d got %d, want %d", i, v, i*21)
		}
	}
	binary.LittleEndian.PutUint32(params[16:], 1001)
	t.Log(m.Run(k, l))
	if err := m.Run(k, l); err == nil {
		t.Error("a write past the end: got no error")
	}
}

// A launch that takes long reports its progress until its end. The second block waits for the first report that counts
// the first one.
func TestProgress(t *testing.T) {
	m := &Machine{Workers: 1}
	t.Cleanup(m.drop)
	mod, err := m.Load(`
.version 9.0
.target sm_100
.address_size 64
.visible .entry waits(.param .u64 x)
{
	.reg .pred %p<2>;
	.reg .b32 %r<3>;
	.reg .b64 %rd<3>;
	ld.param.u64 %rd1, [x];
	mov.u32 %r1, %ctaid.x;
	setp.lt.u32 %p1, %r1, 3;
	@%p1 bra $done;
	mov.u64 %rd2, 0;
$again:
	add.u64 %rd2, %rd2, 1;
	ld.volatile.global.u32 %r2, [%rd1];
	setp.eq.u32 %p1, %r2, 0;
	@%p1 bra $again;
$done:
	ret;
}
`)
	if err != nil {
		t.Fatal(err)
	}
	k, err := mod.Kernel("waits")
	if err != nil {
		t.Fatal(err)
	}
	x, memory := words(m, "x", 0)
	var reports []string
	m.OnHazard = func(h device.Hazard) {
		if h.Kind != device.Progress {
			t.Errorf("got hazard %v", h)
		}
		if reports = append(reports, h.Text); strings.HasPrefix(h.Text, "kernel waits: 3 of 4 blocks, ") {
			atomic.StoreUint32(&memory[0], 1)
		}
	}
	l := Launch{Grid: [3]int{4, 1, 1}, Block: [3]int{32, 1, 1}, Params: binary.LittleEndian.AppendUint64(nil, uint64(x))}
	m.slow = time.Millisecond
	if err := m.Run(k, l); err != nil {
		t.Fatal(err)
	}
	if n := len(reports); n < 2 || reports[n-1] != "" || slices.Contains(reports[:n-1], "") {
		t.Errorf("got %q, want reports and an empty one", reports)
	}
	reports, m.slow = nil, time.Hour
	if err := m.Run(k, l); err != nil || reports != nil {
		t.Errorf("a fast launch: got %q, %v", reports, err)
	}
}

func TestProgressText(t *testing.T) {
	for _, tc := range []struct {
		kernel      string
		done, total int
		ran         time.Duration
		want        string
	}{
		{"gemm", 312, 4096, 6 * time.Second, "kernel gemm: 312 of 4096 blocks, 52 blocks/s"},
		{"gemm", 1, 4, 30 * time.Second, "kernel gemm: 1 of 4 blocks, 0.033 blocks/s"},
		{"gemm", 0, 1, 2 * time.Second, "kernel gemm: 0 of 1 block"},
		{strings.Repeat("k", 41), 0, 2, time.Second, "kernel " + strings.Repeat("k", 39) + "…: 0 of 2 blocks"},
	} {
		if got := progress(tc.kernel, tc.done, tc.total, tc.ran); got != tc.want {
			t.Errorf("got %q, want %q", got, tc.want)
		}
	}
}
