//go:build linux && cgo

package vgpu

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"fisub/device/nvcc"
	"fisub/device/sass"
	"fisub/internal/cache"
	"fisub/internal/longtest"
)

// loaded returns kernel scale with the given registers and bytes of local memory.
func loaded(t *testing.T, text string, u *usage) *Kernel {
	t.Helper()
	m := &Machine{}
	mod, err := m.Load(text)
	if err != nil {
		t.Fatal(err)
	}
	if u != nil {
		mod.usage = map[string]usage{"scale": *u}
	}
	k, err := mod.Kernel("scale")
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// The numbers are from an H100, for kernels with these registers: cudaFuncAttributes.maxThreadsPerBlock, and
// cudaOccupancyMaxActiveBlocksPerMultiprocessor for 32, 128, 224, 320, 416, 512 and 1024 threads.
func TestOccupancy(t *testing.T) {
	for _, tc := range []struct {
		registers, most int
		blocks          [7]int
	}{
		{32, 1024, [7]int{32, 16, 9, 6, 4, 4, 2}},
		{166, 384, [7]int{12, 3, 1, 1, 0, 0, 0}},
		{230, 256, [7]int{8, 2, 1, 0, 0, 0, 0}},
		{255, 256, [7]int{8, 2, 1, 0, 0, 0, 0}},
	} {
		k := loaded(t, simple, &usage{registers: tc.registers})
		if n := k.MaxThreads(); n != tc.most {
			t.Errorf("%d registers: at most %d threads, want %d", tc.registers, n, tc.most)
		}
		for i, threads := range []int{32, 128, 224, 320, 416, 512, 1024} {
			if n := k.blocks(threads, 0); n != tc.blocks[i] {
				t.Errorf("%d registers, %d threads: %d blocks, want %d", tc.registers, threads, n, tc.blocks[i])
			}
		}
	}
}

func TestRefusals(t *testing.T) {
	bounded := strings.Replace(simple, ".param .u32 n)\n", ".param .u32 n)\n.maxntid 64\n", 1)
	launch := func(grid, threads int, change func(*Launch)) Launch {
		l := Launch{Grid: [3]int{grid, 1, 1}, Block: [3]int{threads, 1, 1}, Cluster: [3]int{1, 1, 1}}
		if change != nil {
			change(&l)
		}
		return l
	}
	cluster := func(n int, allowed bool) func(*Launch) {
		return func(l *Launch) { l.Cluster[0], l.anyCluster = n, allowed }
	}
	for _, tc := range []struct {
		name   string
		text   string
		usage  *usage
		launch Launch
		code   int
		why    string
	}{
		{"as many threads as registers allow", simple, &usage{registers: 166}, launch(1, 384, nil), 0, ""},
		{"a warp more", simple, &usage{registers: 166}, launch(1, 385, nil), 701,
			"385 threads with 166 registers each; it can have at most 384 threads"},
		{"registers are not known", simple, nil, launch(1, 1024, nil), 0, ""},
		{"launch bounds", bounded, &usage{registers: 8}, launch(1, 128, nil), 1, "launch bounds of 64"},
		{"a cluster of 8", simple, nil, launch(16, 32, cluster(8, false)), 0, ""},
		{"a cluster of 16", simple, nil, launch(32, 32, cluster(16, false)), 912, "NonPortableClusterSizeAllowed"},
		{"a cluster of 16 that is allowed", simple, nil, launch(32, 32, cluster(16, true)), 0, ""},
		{"a cluster of 32 that is allowed", simple, nil, launch(32, 32, cluster(32, true)), 912, "more than a GPU"},
		{"local memory", simple, &usage{registers: 32, local: 512 << 10}, launch(1, 32, nil), 0, ""},
		{"too much local memory", simple, &usage{registers: 32, local: 520 << 10}, launch(1, 32, nil), 1, "532480 bytes of local memory"},
		{"cooperative, 2 blocks on each multiprocessor", simple, &usage{registers: 238},
			launch(296, 128, func(l *Launch) { l.Cooperative = true }), 0, ""},
		{"cooperative, one more", simple, &usage{registers: 238},
			launch(297, 128, func(l *Launch) { l.Cooperative = true }), 720, "of which only 296 fit"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			why, code := loaded(t, tc.text, tc.usage).refusal(tc.launch)
			if code != tc.code || !strings.Contains(why, tc.why) {
				t.Errorf("got %d, %q, want %d, %q", code, why, tc.code, tc.why)
			}
		})
	}
}

// Fat binaries written by nvcc: uncompressed, with LZ4, with zstd, and with zstd also for machine code.
func TestFatBinaries(t *testing.T) {
	longtest.Skip(t, "runs nvcc")
	root, err := cache.Root()
	if err != nil {
		t.Fatal(err)
	}
	tools, err := nvcc.Find(root)
	if err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	const source = `__global__ void scale(float* x) { x[threadIdx.x] *= 3; }
__global__ void other(int* x, int n) { int a[300]; for (int i = 0; i < 300; i++) a[i] = x[i]; *x = a[x[n] & 255]; }`
	if err := os.WriteFile(filepath.Join(dir, "k.cu"), []byte(source), 0o644); err != nil {
		t.Fatal(err)
	}
	compile := func(flags ...string) ([]byte, error) {
		cmd := exec.Command(tools.NVCC, append(flags, "-fatbin", "-o", "k.fatbin", "k.cu")...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", flags, err, out)
		}
		return os.ReadFile(filepath.Join(dir, "k.fatbin"))
	}
	for _, mode := range []string{"none", "speed", "size"} {
		data, err := compile("-arch=sm_90a", "-compress-mode="+mode)
		if err != nil {
			t.Fatal(err)
		}
		i, err := readImage(func(n int) []byte { return data[:n] })
		if err != nil {
			t.Fatalf("%s: %v", mode, err)
		}
		if i.arch != 90 || target(i.ptx[0]) != 90 || !strings.Contains(i.ptx[0], ".entry _Z5scalePf") {
			t.Errorf("%s: arch %d, PTX of %d bytes", mode, i.arch, len(i.ptx[0]))
		}
		if u := i.usage["_Z5scalePf"]; u.registers == 0 || u.local != 0 {
			t.Errorf("%s: scale has %+v", mode, u)
		}
		if u := i.usage["_Z5otherPii"]; u.registers == 0 || u.local != 1200 {
			t.Errorf("%s: other has %+v, want 1200 bytes of local memory", mode, u)
		}
		for n := range len(data) / 64 { // damaged data gives an error or goes unnoticed
			cut := append([]byte(nil), data...)
			cut[n*64+n%64] ^= 0x55
			_, _ = readImage(func(n int) []byte { return cut[:min(n, len(cut))] })
		}
	}
	for flag, lines := range map[string]int{"-lineinfo": 2, "-O3": 0} {
		data, err := compile("-arch=sm_90a", flag)
		if err != nil {
			t.Fatal(err)
		}
		mod, err := newHostModule(unsafe.Pointer(&data[0]), nil, nil).load()
		if err != nil {
			t.Fatal(err)
		}
		k, err := mod.Kernel("_Z5scalePf")
		if err != nil {
			t.Fatal(err)
		}
		got, err := k.MachineCode()
		if err != nil || len(got) != lines {
			t.Errorf("%s: got machine code %+v, %v, want %d lines", flag, got, err, lines)
		}
		for _, l := range got {
			if filepath.Base(l.File) != "k.cu" || l.Line != 1 || l.PTX != 1 || l.SASS != 1 || l.Verdict != sass.Equal {
				t.Errorf("%s: got %+v, want one equal access on line 1", flag, l)
			}
		}
	}
	data, err := compile("-gencode=arch=compute_90,code=sm_90")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := readImage(func(n int) []byte { return data[:n] }); err == nil || !strings.Contains(err.Error(), "machine code for sm_90 but no PTX") {
		t.Errorf("without PTX: got %v", err)
	}
}

func TestLZ4(t *testing.T) {
	long := strings.Repeat("a", 300)
	for _, tc := range []struct {
		in, want string
		size     int
		ok       bool
	}{
		{"\x50hello", "hello", 5, true},
		{"\x14a\x01\x00\x00", "aaaaaaaaa", 9, true},                    // a match overlaps itself
		{"\x1fa\x01\x00\xff\x19\x00", long, 300, true},                 // a length in several bytes: 1 + 4 + 15 + 255 + 25
		{"\xf0\x00" + long[:15], long[:15], 15, true},                  // the same for literals
		{"\x50hell", "", 5, false},                                     // truncated
		{"\x50hello", "", 4, false},                                    // longer than stated
		{"\x14a\x02\x00\x00", "", 9, false},                            // a match before the start of the text
		{"\x14a\x00\x00\x00", "", 9, false},                            // a match with distance 0
		{"\x1fa\x01\x00\xff", "", 300, false},                          // an unterminated length
		{"\x14a\x01", "", 9, false},                                    // half a distance
		{"\x1fa\x01\x00\xff\xff\xff\xff\xff\xff\x00", "", 1000, false}, // much longer than stated
		{strings.Repeat("\xf0\xff", 1), "", 10, false},
	} {
		got, err := lz4([]byte(tc.in), tc.size)
		if (err == nil) != tc.ok || tc.ok && string(got) != tc.want {
			t.Errorf("%q: got %q, %v", tc.in, got, err)
		}
	}
}
