//go:build linux && cgo

package vgpu

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"fisub/device"
	"fisub/internal/tensor"
)

// opened returns the virtual GPU, opened without a compiler.
func opened(t *testing.T, sanitize string) *gpu {
	t.Helper()
	d, err := Opener().Open(t.Context(), device.Options{CacheDir: t.TempDir(), Prebuilt: t.TempDir(), Sanitize: sanitize})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		d.Close()
		host.machine.Check, host.machine.Strict = 0, 0
	})
	return d.(*gpu)
}

// drop frees all memory of the machine.
func (m *Machine) drop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, a := range m.ranges {
		if a.free != nil {
			a.free()
		}
	}
	m.ranges = nil
}

// tensors allocates one-dimensional tensors with elements of size bytes, as a worker does for a call. free releases
// them.
func tensors(t *testing.T, g *gpu, size int, elements ...int) (args []device.Arg, free func()) {
	t.Helper()
	for _, n := range elements {
		b, err := g.Alloc(n * size)
		if err != nil {
			t.Fatal(err)
		}
		dtype := map[int]tensor.DType{1: tensor.Int8, 2: tensor.BFloat16, 4: tensor.Float32}[size]
		args = append(args, device.Arg{Tensor: &device.TensorArg{Buffer: b, DType: dtype, Shape: []int{n}}})
	}
	return args, func() {
		for _, a := range args {
			a.Tensor.Buffer.Close()
		}
	}
}

// given lets kernels use the arguments, as a call of k does, and returns their addresses.
func given(t *testing.T, k *kernel, args []device.Arg) (addresses []uint64) {
	t.Helper()
	all, bases, err := k.convert(args)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, p := range bases {
			host.machine.Unmap(p)
		}
	})
	for _, a := range all {
		addresses = append(addresses, uint64(a.Tensor.Data))
	}
	return addresses
}

// at64 runs the named kernel with one address as its parameter.
func at64(t *testing.T, mod *Module, name string, address uint64) error {
	t.Helper()
	k, err := mod.Kernel(name)
	if err != nil {
		t.Fatal(err)
	}
	l := threads(1, 1)
	l.Grid, l.Block = [3]int{1, 1, 1}, [3]int{1, 1, 1}
	l.Params = binary.LittleEndian.AppendUint64(nil, address)
	return host.machine.Run(k, l)
}

// accesses returns kernels that read and write 2 or 4 bytes at an address.
func accesses(t *testing.T) *Module {
	t.Helper()
	text := ".version 9.0\n.target sm_100\n.address_size 64\n.visible .global .align 4 .b8 variable[4];\n"
	for _, bits := range []int{16, 32} {
		text += fmt.Sprintf(`
.visible .entry read%[1]d(.param .u64 x)
{
	.reg .b%[1]d %%v; .reg .b64 %%rd1;
	ld.param.u64 %%rd1, [x];
	ld.global.b%[1]d %%v, [%%rd1];
	ret;
}
.visible .entry write%[1]d(.param .u64 x)
{
	.reg .b%[1]d %%v; .reg .b64 %%rd1;
	ld.param.u64 %%rd1, [x];
	mov.b%[1]d %%v, 7;
	st.global.b%[1]d [%%rd1], %%v;
	ret;
}
`, bits)
	}
	mod, err := host.machine.Load(text)
	if err != nil {
		t.Fatal(err)
	}
	return mod
}

// TestAddresses makes the same allocations in two processes: the addresses must be the same, and far apart.
func TestAddresses(t *testing.T) {
	const asked = "FISUB_TEST_ADDRESSES"
	if os.Getenv(asked) == "" {
		var said [2]string
		for i := range said {
			cmd := exec.Command(os.Args[0], "-test.run=^TestAddresses$", "-test.v")
			cmd.Env = append(os.Environ(), asked+"=1")
			out, err := cmd.Output()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			_, list, _ := strings.Cut(string(out), "addresses ")
			said[i], _, _ = strings.Cut(list, "\n")
		}
		if said[0] == "" || said[0] != said[1] {
			t.Errorf("got %s, then %s", said[0], said[1])
		}
		return
	}
	g := opened(t, "")
	mod := accesses(t)
	args, _ := tensors(t, g, 4, 1024, 1, 0, 4096, 5)
	all := given(t, &kernel{gpu: g}, args)
	variable, _ := mod.Symbol("variable")
	k, err := mod.Kernel("read32")
	if err != nil {
		t.Fatal(err)
	}
	all = append(all, uint64(variable), mod.params(k.src), uint64(vgAlloc(100, 0, nil)), uint64(vgAlloc(100, 1, nil)), uint64(vgAlloc(4096, 0, nil)))
	freed := all[1]
	args[1].Tensor.Buffer.Close()
	again, _ := tensors(t, g, 4, 1)
	if now := given(t, &kernel{gpu: g}, again)[0]; now != freed {
		t.Errorf("got %#x for memory as large as what was freed at %#x", now, freed)
	}
	for i, a := range all {
		for _, b := range all[:i] {
			if max(a, b)-min(a, b) < 1<<33 {
				t.Errorf("%#x and %#x are near each other", a, b)
			}
		}
	}
	fmt.Printf("addresses %#x\n", all)
}

// TestNextToTensors reads and writes the elements before and after each tensor of a decode step.
func TestNextToTensors(t *testing.T) {
	g := opened(t, "memcheck")
	mod := accesses(t)
	names := []string{"q", "k", "v", "state", "A_log", "a", "dt_bias", "b", "output", "new_state"}
	for _, batch := range []int{1, 2, 4, 32, 64} {
		var args []device.Arg
		for i, n := range []int{batch * 512, batch * 512, batch * 1024, batch * 131072, 8, batch * 8, 8, batch * 8, batch * 1024,
			batch * 131072} {
			size := 2
			if name := names[i]; name == "state" || name == "A_log" || name == "dt_bias" || name == "new_state" {
				size = 4
			}
			one, free := tensors(t, g, size, n)
			defer free()
			args = append(args, one...)
		}
		k := &kernel{gpu: g, names: names}
		addresses := given(t, k, args)
		for i, a := range addresses {
			size := args[i].Tensor.Buffer.Len()
			bytes := size / args[i].Tensor.Shape[0]
			name := fmt.Sprintf("argument %d (%s)", i, names[i])
			for _, verb := range []string{"read", "write"} {
				access := fmt.Sprintf("%s%d", verb, 8*bytes)
				for address, want := range map[uint64]string{a - uint64(bytes): fmt.Sprintf("%d bytes before %s", bytes, name),
					a: "", a + uint64(size-bytes): "", a + uint64(size): "0 bytes past the end of " + name,
					a + uint64(size) + 4<<20: "4194304 bytes past the end of " + name,
					a - 1<<31:                "2147483648 bytes before " + name} {
					if want != "" {
						want = fmt.Sprintf("kernel %s, block (0,0,0), thread (0,0,0): invalid %s of %d bytes at %#x, %s", access, verb,
							bytes, address, want)
					}
					err := at64(t, mod, access, address)
					if want == "" && err != nil || want != "" && (err == nil || err.Error() != want) {
						t.Errorf("batch %d: got %v, want %s", batch, err, want)
					}
				}
			}
		}
	}
}

// TestFarAway has invalid accesses that are not near any allocation.
func TestFarAway(t *testing.T) {
	g := opened(t, "memcheck")
	mod := accesses(t)
	args, free := tensors(t, g, 4, 1024)
	defer free()
	a := given(t, &kernel{gpu: g, names: []string{"x"}}, args)[0]
	for address, want := range map[uint64]string{
		a + 12<<30: "outside the device's memory, far from the nearest tensor: " +
			"12884897792 bytes past the end of argument 0 (x)",
		1 << 36: "outside the device's memory",
		a + 4097: "misaligned read: address " + fmt.Sprintf("%#x", a+4097) + " is not a multiple of 4, " +
			"1 bytes past the end of argument 0 (x)",
		a + 1: "misaligned read: address " + fmt.Sprintf("%#x", a+1) + " is not a multiple of 4",
	} {
		if err := at64(t, mod, "read32", address); err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%#x: got %v, want %s", address, err, want)
		}
	}
}

// release frees memory of the submission.
func release(address uint64) { host.machine.Unmap(uintptr(address)) }

// TestSparse uses parts of tensors that are larger than this machine's memory.
func TestSparse(t *testing.T) {
	const size, far = 200 << 30, 199<<30 + 4*16385
	g := opened(t, "")
	mod := accesses(t)
	before := resident(t)
	args, free := tensors(t, g, 1, size)
	defer free()
	own := uint64(vgAlloc(size, 0, nil))
	defer release(own)
	for _, base := range []uint64{given(t, &kernel{gpu: g}, args)[0], own} {
		if base == 0 {
			t.Fatal("no memory")
		}
		value := (*uint32)(at(uintptr(base + far)))
		if want := map[bool]uint32{true: ^uint32(0)}[base == own]; *value != want {
			t.Errorf("got %#x before a write, want %#x", *value, want)
		}
		for _, name := range []string{"write32", "read32"} {
			if err := at64(t, mod, name, base+far); err != nil {
				t.Error(err)
			}
		}
		if *value != 7 {
			t.Errorf("got %d, want 7", *value)
		}
		if err := at64(t, mod, "read32", base+size); err == nil || !strings.Contains(err.Error(), " 0 bytes past the end of ") {
			t.Errorf("got %v past the end", err)
		}
	}
	if taken := resident(t) - before; taken > 256<<20 {
		t.Errorf("%d bytes of memory were taken", taken)
	}
	if err := args[0].Tensor.Buffer.Fill(0); err == nil {
		t.Error("more was filled than this machine can have: got no error")
	}
}

// resident returns the bytes of memory that this process uses.
func resident(t *testing.T) (pages int) {
	t.Helper()
	var all int
	text, err := os.ReadFile("/proc/self/statm")
	if err == nil {
		_, err = fmt.Sscan(string(text), &all, &pages)
	}
	if err != nil {
		t.Fatal(err)
	}
	return pages * os.Getpagesize()
}

// TestUnwrittenGlobal reads memory of the submission (%rd1) by all means, after a write by each means or none. %r10 is
// shared memory whose first 16 bytes are written.
func TestUnwrittenGlobal(t *testing.T) {
	opened(t, "initcheck")
	host.machine.Check = UnwrittenGlobal
	const said = ": read of %d unwritten bytes of global memory at %#x, byte %d of the submission's allocation %d (4096 bytes)"
	load := "ld.global.u32 %r2, [%rd1+16];"
	copied := `
	mbarrier.init.shared.b64 [%r10+256], 1;
	mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r10+256], 16;
	cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r10], [%rd1+16], 16, [%r10+256];`
	for _, c := range []struct {
		name, body    string
		bytes, offset int // of the read; 0: no hazard
	}{
		{"load", load, 4, 16},
		{"generic load", "ld.u8 %r2, [%rd1+7];", 1, 7},
		{"load of what is behind", "st.global.u32 [%rd1], %r1; ld.global.u32 %r2, [%rd1+4];", 4, 4},
		{"vector half of which is written", "st.global.v2.u32 [%rd1+16], {%r1, %r1}; ld.global.v4.u32 {%r2, %r3, %r4, %r5}, [%rd1+16];" +
			"st.global.u32 [%rd1+64], %r4;", 16, 16},
		{"vector whose written half is used", "st.global.v2.u32 [%rd1+16], {%r1, %r1}; ld.global.v4.u32 {%r2, %r3, %r4, %r5}, [%rd1+16];" +
			"st.global.v2.u32 [%rd1+64], {%r2, %r3};", 0, 0},
		{"atomic", "atom.global.add.u32 %r2, [%rd1+16], 1;", 4, 16},
		{"reduction", "red.global.add.u32 [%rd1+16], 1;", 4, 16},
		{"cp.async", "cp.async.ca.shared.global [%r10], [%rd1+16], 16;", 16, 16},
		{"bulk copy", copied, 16, 16},
		{"reduction of a bulk copy", "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd1+16], [%r10], 16;", 16, 16},
		{"written by a store", "st.global.u32 [%rd1+16], %r1;" + load, 0, 0},
		{"written by bytes", "st.global.u8 [%rd1+16], %r1; st.u8 [%rd1+17], %r1; st.global.u16 [%rd1+18], %r1;" + load, 0, 0},
		{"written by a vector", "st.global.v4.u32 [%rd1+16], {%r1, %r1, %r1, %r1};" + copied, 0, 0},
		{"exchange", "atom.global.exch.b32 %r2, [%rd1+16], 1; st.global.u32 [%rd1+32], %r2;", 4, 16},
		{"written by an exchange", "atom.global.exch.b32 %r2, [%rd1+16], 1; ld.global.u32 %r3, [%rd1+16];", 0, 0},
		{"written by an exchange without a result", "atom.global.exch.b64 _, [%rd1+16], 1;" + load, 0, 0},
		{"compare-and-swap", "atom.global.cas.b32 %r3, [%rd1+16], 1, 2;", 4, 16},
		{"word around a written byte", "st.global.u8 [%rd1+17], %r1;" + load, 4, 16},
		{"atomic on a written byte", "st.global.u8 [%rd1+17], %r1; ld.relaxed.gpu.global.b32 %r2, [%rd1+16];" +
			"atom.global.cas.b32 %r3, [%rd1+16], %r2, 1;", 0, 0},
		{"atomic on a written half of shared memory", "st.shared.u16 [%r10+32], %r1; ld.relaxed.cta.shared.b32 %r2, [%r10+32];" +
			"atom.shared.cas.b32 %r3, [%r10+32], %r2, 1;", 0, 0},
		{"written by a bulk copy", "cp.async.bulk.global.shared::cta.bulk_group [%rd1+16], [%r10], 16;" + load, 0, 0},
		{"written by the host", load, 0, 0},
		{"memory of the host", load, 0, 0},
		{"a variable", "mov.u64 %rd1, variable;" + load, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			base := uint64(vgAlloc(4096, 0, nil))
			if c.name == "memory of the host" {
				release(base)
				base = uint64(vgAlloc(4096, 1, nil))
			}
			defer release(base)
			if c.name == "written by the host" {
				host.machine.written(uintptr(base+10), 10)
			}
			mod, err := host.machine.Load(`.version 9.0
.target sm_100
.address_size 64
.visible .global .align 4 .b8 variable[64];
.visible .entry k(.param .u64 x)
{
	.reg .b32 %r<12>; .reg .b64 %rd<9>;
	.shared .align 128 .b8 s[512];
	ld.param.u64 %rd1, [x];
	mov.u32 %r1, 5;
	mov.u32 %r10, s;
	st.shared.v4.u32 [%r10], {%r1, %r1, %r1, %r1};
` + c.body + "\n\tret;\n}\n")
			if err != nil {
				t.Fatal(err)
			}
			err = at64(t, mod, "k", base)
			want := fmt.Sprintf(said, c.bytes, base+uint64(c.offset), c.offset, host.machine.numbers)
			if c.bytes == 0 && err != nil || c.bytes != 0 && (err == nil || !strings.HasSuffix(err.Error(), want)) {
				t.Errorf("got %v, want %s", err, want)
			}
			host.machine.Check = 0
			if err := at64(t, mod, "k", base); err != nil {
				t.Errorf("without the check: %v", err)
			}
			host.machine.Check = UnwrittenGlobal
			if err := at64(t, mod, "k", base); err != nil {
				t.Errorf("memory used before the check was on: %v", err)
			}
		})
	}
}

// TestWriteFile writes files to buffers, with and without mapping pages.
func TestWriteFile(t *testing.T) {
	const n, at = fewMapped + 100, 4096
	f, err := os.Create(filepath.Join(t.TempDir(), "x"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	content := func(n int) []byte { // mostly zeros, so that the file is sparse
		data := make([]byte, n)
		data[0], data[n/2], data[n-1] = 1, 2, 3
		return data
	}
	for _, from := range []int64{at, at + 8} {
		for i, b := range content(n) {
			if b == 0 {
				continue
			}
			if _, err := f.WriteAt([]byte{b}, from+int64(i)); err != nil {
				t.Fatal(err)
			}
		}
		band, err := opened(t, "").Alloc(at + n + at)
		if err != nil {
			t.Fatal(err)
		}
		defer band.Close()
		b := band.Slice(at, n)
		got := make([]byte, n)
		for _, err := range []error{band.Fill(9), b.(device.FileBuffer).WriteFile(f, from, n), b.Read(got)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(got, content(n)) {
			t.Error("the buffer has other bytes than the file")
		}
		around := make([]byte, at+n+at)
		if err := band.Read(around); err != nil {
			t.Fatal(err)
		}
		if edges := append(around[:at:at], around[at+n:]...); !bytes.Equal(edges, bytes.Repeat([]byte{9}, 2*at)) {
			t.Error("bytes around the buffer have changed")
		}
		if err := b.Write([]byte{7}); err != nil {
			t.Fatal(err)
		}
		if _, err := f.ReadAt(got[:1], from); err != nil || got[0] != 1 {
			t.Errorf("a write to the buffer changes the file to %d, %v", got[0], err)
		}
		if err := f.Truncate(0); err != nil {
			t.Fatal(err)
		}
	}
}

// TestUnwrittenOutput reads an input and an output.
func TestUnwrittenOutput(t *testing.T) {
	g := opened(t, "initcheck")
	mod := accesses(t)
	host.machine.Check = UnwrittenGlobal
	args, free := tensors(t, g, 4, 1024, 1024)
	defer free()
	call := func(name string, i int) error {
		k := &kernel{gpu: g, names: []string{"x", "out"}}
		all, bases, err := k.convert(args)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			for _, p := range bases {
				host.machine.Unmap(p)
			}
		}()
		return at64(t, mod, name, uint64(all[i].Tensor.Data)+8)
	}
	in, out := args[0].Tensor.Buffer, args[1].Tensor.Buffer
	for _, err := range []error{in.Write(make([]byte, 4096)), out.Fill(0xff), call("read32", 0)} {
		if err != nil {
			t.Error(err)
		}
	}
	if err := call("read32", 1); err == nil || !strings.HasSuffix(err.Error(), "byte 8 of argument 1 (out)") {
		t.Errorf("got %v of an output", err)
	}
	for range 2 { // it counts as written until the next Fill
		if err := call("write32", 1); err != nil {
			t.Error(err)
		}
		if err := call("read32", 1); err != nil {
			t.Error(err)
		}
	}
	if err := out.Fill(0xff); err != nil {
		t.Error(err)
	}
	if err := call("read32", 1); err == nil {
		t.Error("got no error of an output that was filled once more")
	}
}

// TestWholeVectors has a block that stores vectors of equal numbers while another one, on another worker, reads them. It
// never sees a part of a vector.
func TestWholeVectors(t *testing.T) {
	for _, v := range []struct{ name, store, load string }{
		{"16 bytes", "st.relaxed.gpu.global.v2.b64 [%rd1], {%rd2, %rd2};", "ld.relaxed.gpu.global.v2.b64 {%rd3, %rd4}, [%rd1];"},
		{"8 bytes", "st.relaxed.gpu.global.v2.b32 [%rd1], {%r1, %r1};", "ld.relaxed.gpu.global.v2.b32 {%r3, %r4}, [%rd1];\n" +
			"cvt.u64.u32 %rd3, %r3;\ncvt.u64.u32 %rd4, %r4;"},
		{"volatile", "st.volatile.global.v4.b32 [%rd1], {%r1, 0, 0, %r1};", "ld.volatile.global.v4.b32 {%r3, %r5, %r6, %r4}, " +
			"[%rd1];\ncvt.u64.u32 %rd3, %r3;\ncvt.u64.u32 %rd4, %r4;"},
	} {
		t.Run(v.name, func(t *testing.T) {
			m := &Machine{Workers: 2}
			defer m.drop()
			mod, err := m.Load(`.version 9.0
.target sm_100
.address_size 64
.visible .entry k(.param .u64 x)
{
	.reg .pred %p; .reg .b32 %r<9>; .reg .b64 %rd<9>;
	ld.param.u64 %rd1, [x];
	mov.u32 %r2, %ctaid.x;
	mov.u32 %r1, 0;
	mov.u32 %r7, 0;
$again:
	add.u32 %r1, %r1, 1;
	cvt.u64.u32 %rd2, %r1;
	setp.ne.u32 %p, %r2, 0;
	@%p bra $read;
	` + v.store + `
	bra $next;
$read:
	` + v.load + `
	setp.ne.u64 %p, %rd3, %rd4;
	@%p add.u32 %r7, %r7, 1;
$next:
	setp.lt.u32 %p, %r1, 200000;
	@%p bra $again;
	setp.ne.u32 %p, %r2, 0;
	@%p st.global.b32 [%rd1+32], %r7;
	ret;
}
`)
			if err != nil {
				t.Fatal(err)
			}
			k, err := mod.Kernel("k")
			if err != nil {
				t.Fatal(err)
			}
			p, x := words(m, "x", make([]uint32, 16)...)
			err = m.Run(k, Launch{Grid: [3]int{2, 1, 1}, Block: [3]int{1, 1, 1}, Params: binary.LittleEndian.AppendUint64(nil, uint64(p))})
			if err != nil || x[8] != 0 {
				t.Errorf("read parts of %d vectors (%v)", x[8], err)
			}
		})
	}
}

// TestFirstFault has an error in block 1 long before one in block 0, on another worker. As with one worker, the report
// must be about block 0.
func TestFirstFault(t *testing.T) {
	for name, body := range map[string]string{"fault": "ld.global.u32 %r2, [%rd1+64];", "hazard": "atom.shared.add.u32 %r2, [s], 1;"} {
		t.Run(name, func(t *testing.T) {
			m := &Machine{Workers: 2}
			defer m.drop()
			said := ""
			m.OnHazard = func(h device.Hazard) { said = h.Text }
			mod, err := m.Load(`.version 9.0
.target sm_100
.address_size 64
.visible .entry k(.param .u64 x)
{
	.reg .pred %p; .reg .b32 %r<9>; .reg .b64 %rd<9>;
	.shared .align 4 .b8 s[16];
	ld.param.u64 %rd1, [x];
	mov.u32 %r1, %ctaid.x;
	setp.ne.u32 %p, %r1, 0;
	@%p bra $wrong;
$again:
	add.u32 %r1, %r1, 1;
	setp.lt.u32 %p, %r1, 30000;
	@%p bra $again;
$wrong:
	` + body + "\n\tret;\n}\n")
			if err != nil {
				t.Fatal(err)
			}
			k, err := mod.Kernel("k")
			if err != nil {
				t.Fatal(err)
			}
			p, _ := words(m, "x", make([]uint32, 16)...)
			err = m.Run(k, Launch{Grid: [3]int{2, 1, 1}, Block: [3]int{1, 1, 1}, Params: binary.LittleEndian.AppendUint64(nil, uint64(p))})
			if err != nil {
				said = err.Error()
			}
			if !strings.Contains(said, "block (0,0,0)") {
				t.Errorf("got %q, want block (0,0,0)", said)
			}
		})
	}
}
