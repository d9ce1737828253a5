package doctor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"fisub/device"
	"fisub/remote/bundle"
)

const idle = "0, NVIDIA H200, 580.95, 9.0, Disabled, 143771, 4, Enabled, 345, 1980, 0\n"

func TestGPURows(t *testing.T) {
	for _, tc := range []struct {
		name, out    string
		gpu, clocks  State
		fact, clocky string
	}{
		{"idle, not held", idle, OK, Warn, "NVIDIA H200, sm_90, 4 of 143771 MiB used",
			"gpu 0: SM at 345 of 1980 MHz, not held"},
		{"held", strings.Replace(idle, "345", "1965", 1), OK, OK, "NVIDIA H200", ", held"},
		{"held, persistence mode off", strings.NewReplacer("345", "1965", "Enabled", "Disabled").Replace(idle), OK, Warn,
			"NVIDIA H200", ", held, persistence mode off"},
		{"MIG", strings.Replace(idle, "Disabled", "Enabled", 1), Warn, Warn, "split by MIG", "not held"},
		{"busy", strings.Replace(idle, ", 0\n", ", 97\n", 1), Warn, OK, "97 % busy with others' work", "cannot see"},
		{"told nothing", "0, GRID, 580.95, 9.0, [N/A], [N/A], [N/A], Enabled, [N/A], [N/A], [N/A]\n", OK, OK, "GRID, sm_90",
			", not told"},
	} {
		rows, err := readSMI(tc.out)
		if err != nil || len(rows) != 1 {
			t.Fatalf("%s: got %v, %v", tc.name, rows, err)
		}
		if l := rows[0].line(); l.Name != "gpu.0" || l.State != tc.gpu || !strings.Contains(l.Fact, tc.fact) ||
			(l.State == OK) != (l.Hint == "") {
			t.Errorf("%s: got %+v, want %s with %q", tc.name, l, tc.gpu, tc.fact)
		}
		if l := clocks(rows); l.State != tc.clocks || !strings.Contains(l.Fact, tc.clocky) ||
			(l.State == OK) != (l.Hint == "") {
			t.Errorf("%s: got %+v, want %s with %q", tc.name, l, tc.clocks, tc.clocky)
		}
	}
	two, err := readSMI(idle + strings.Replace(idle, "0,", "1,", 1))
	if l := clocks(two); err != nil || !strings.Contains(l.Hint, "-i 0,1 -lgc") {
		t.Errorf("got %+v, %v, want a lock for both", l, err)
	}
	for _, out := range []string{"NVIDIA-SMI has failed\n", "a, b\n"} {
		if rows, err := readSMI(out); err == nil {
			t.Errorf("%q: got %v, want an error", out, rows)
		}
	}
}

func TestCounters(t *testing.T) {
	for params, want := range map[string]State{"A: 1\nRmProfilingAdminOnly: 0\n": OK, "RmProfilingAdminOnly: 1\n": Warn,
		"": Warn} {
		if l := counters(params); l.State != want || (l.State == OK) != (l.Hint == "") {
			t.Errorf("%q: got %+v, want %s", params, l, want)
		}
	}
}

// What is missing is told with the commands that need it; of several hosts one is enough.
func TestReport(t *testing.T) {
	r := &Report{Lines: []Line{{Name: "git", State: Missing}, {Name: "config", State: Warn}, {Name: "nvcc", State: OK},
		{Name: "tvm-ffi", State: OK},
		{Name: "cache", State: OK}, {Name: "runs", State: OK}, {Name: "remote.a", State: Missing},
		{Name: "remote.b.host", State: OK}}}
	r.sumUp()
	if got := r.Lines[0].Needed; !slices.Equal(got, []string{"fisub submit"}) {
		t.Errorf("git: got %q", got)
	}
	for _, u := range r.Uses {
		want := map[string][]string{"fisub submit": {"git"}}[u.Command]
		if !slices.Equal(u.Lacks, want) || u.OK != (want == nil) {
			t.Errorf("%s: got %+v, want it to lack %q", u.Command, u, want)
		}
	}
	for _, tc := range []struct {
		names, want []string
		wrong       bool
	}{
		{[]string{"nvcc", "config", "remote", "remote.b"}, nil, false},
		{[]string{"git", "remote.a", "git", "nvcc"}, []string{"git", "remote.a"}, false},
		{[]string{"clocks"}, []string{"clocks"}, false},
		{[]string{"gti"}, nil, true},
	} {
		got, err := r.Require(tc.names)
		if !slices.Equal(got, tc.want) || (err != nil) != tc.wrong {
			t.Errorf("%q: got %q, %v, want %q", tc.names, got, err, tc.want)
		}
	}
	if got, _ := (&Report{Lines: []Line{{Name: "gpu-support", State: OK}, {Name: "driver", State: OK},
		{Name: "gpu", State: Missing}, {Name: "nvcc", State: OK},
		{Name: "tvm-ffi", State: OK}}}).Require([]string{"cuda"}); !slices.Equal(got, []string{"gpu"}) {
		t.Errorf("cuda: got %q, want gpu", got)
	}
}

func TestFolder(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if l := folder("cache", filepath.Join(dir, "a", "b"), 1, "m"); l.State != OK || !strings.Contains(l.Fact, " free") {
		t.Errorf("got %+v, want a folder that can be made", l)
	}
	if l := folder("cache", dir, 1<<62, "m"); l.State != Warn || !strings.HasPrefix(l.Hint, "make room") {
		t.Errorf("got %+v, want too little room", l)
	}
	for _, bad := range []string{file, filepath.Join(file, "x"), "/proc/fisub"} {
		if l := folder("cache", bad, 1, "m"); l.State != Missing || l.Hint != "m" {
			t.Errorf("%s: got %+v, want none that can be written to", bad, l)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("got %v, %v: something is left", entries, err)
	}
}

// A machine with a GPU, as nvidia-smi and the worker tell of it.
func TestExamineGPU(t *testing.T) {
	dir := t.TempDir()
	script := "#!/bin/sh\ncat <<END\n" + idle + "END\n"
	if err := os.WriteFile(filepath.Join(dir, "nvidia-smi"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	r := Examine(t.Context(), Options{Built: true, Cache: t.TempDir(), Config: filepath.Join(dir, "config.toml"),
		OpenGPU: func(context.Context) (device.Info, error) {
			return device.Info{Name: "NVIDIA H200", Arch: "sm_90", MemoryBytes: 140 << 30}, nil
		},
		Tool: func(name string) (string, error) { return "", errors.New("no " + name) }})
	for name, want := range map[string]State{"gpu-support": OK, "driver": OK, "gpu": OK, "gpu.0": OK, "clocks": Warn,
		"ncu": Missing} {
		if i := slices.IndexFunc(r.Lines, func(l Line) bool { return l.Name == name }); i < 0 || r.Lines[i].State != want {
			t.Errorf("%s: got %+v, want %s", name, r.Lines, want)
		}
	}
}

// What fisub remote would refuse, doctor says that it cannot do.
func TestRemoteIsReady(t *testing.T) {
	root := t.TempDir()
	for _, built := range []bool{false, true} {
		ready := bundle.Ready(root, built)
		if errors.Is(ready, bundle.ErrNoGPUSupport) == built {
			t.Errorf("built %v: got %v", built, ready)
		}
		r := Examine(t.Context(), Options{Built: built, Cache: root, Config: filepath.Join(t.TempDir(), "config.toml"),
			Tool: func(name string) (string, error) { return "", errors.New("no " + name) }})
		use := r.Uses[slices.IndexFunc(r.Uses, func(u Use) bool { return u.Command == "fisub remote" })]
		if use.OK != (ready == nil) || slices.Contains(use.Lacks, "bundle") != (ready != nil) {
			t.Errorf("built %v: got %+v, want what bundle.Ready says: %v", built, use, ready)
		}
	}
}
