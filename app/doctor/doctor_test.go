package doctor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"fisub/device"
	"fisub/remote/bundle"
)

// A command lists the missing things that it needs; one of several hosts is enough.
func TestReport(t *testing.T) {
	r := &Diagnosis{Lines: []Probe{{Name: "git", State: Missing}, {Name: "config", State: Warn}, {Name: "nvcc", State: OK},
		{Name: "cache", State: OK}, {Name: "runs", State: OK}, {Name: "remote.a", State: Missing},
		{Name: "remote.b.host", State: OK}}}
	r.sumUp()
	for _, u := range r.Uses {
		want := map[string][]string{"fisub submit": {"git"}}[u.Command]
		if !slices.Equal(u.Lacks, want) || u.OK != (want == nil) {
			t.Errorf("%s: got %+v, want it to lack %q", u.Command, u, want)
		}
	}
	r.Lines[2] = Probe{Name: "nvcc", State: Missing, fetchable: true}
	r.Uses = nil
	r.sumUp()
	for _, u := range r.Uses {
		if u.Command == "fisub local --device emu" && (!u.OK || !slices.Equal(u.Fetches, []string{"nvcc"})) ||
			u.Command == "fisub check --arch" && (u.OK || u.Fetches != nil) {
			t.Errorf("%s: got %+v, want only local to download nvcc", u.Command, u)
		}
	}
	r.Lines[2] = Probe{Name: "nvcc", State: OK}
	for _, tc := range []struct {
		names, want []string
		wrong       bool
	}{
		{[]string{"nvcc", "config", "remote", "remote.b"}, nil, false},
		{[]string{"git", "remote.a", "git", "nvcc"}, []string{"git", "remote.a"}, false},
		{[]string{"gti"}, nil, true},
	} {
		got, err := r.Require(tc.names)
		if !slices.Equal(got, tc.want) || (err != nil) != tc.wrong {
			t.Errorf("%q: got %q, %v, want %q", tc.names, got, err, tc.want)
		}
	}
	if got, _ := (&Diagnosis{Lines: []Probe{{Name: "gpu-support", State: OK}, {Name: "driver", State: OK},
		{Name: "gpu", State: Missing}, {Name: "nvcc", State: OK}}}).Require([]string{"cuda"}); !slices.Equal(got, []string{"gpu"}) {
		t.Errorf("cuda: got %q, want gpu", got)
	}
}

func TestFolder(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if l := folder("cache", filepath.Join(dir, "a", "b"), "m"); l.State != OK {
		t.Errorf("got %+v, want a folder that can be made", l)
	}
	for _, bad := range []string{file, filepath.Join(file, "x"), "/proc/fisub"} {
		if l := folder("cache", bad, "m"); l.State != Missing || l.Hint != "m" {
			t.Errorf("%s: got %+v, want none that can be written to", bad, l)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("got %v, %v: something is left", entries, err)
	}
}

// A machine with a GPU, as the worker describes it.
func TestExamineGPU(t *testing.T) {
	r := Examine(t.Context(), Options{Built: true, Cache: t.TempDir(), Config: filepath.Join(t.TempDir(), "config.toml"),
		OpenGPU: func(context.Context) (device.Info, error) {
			return device.Info{Name: "NVIDIA H200", Arch: "sm_90", MemoryBytes: 140 << 30}, nil
		},
		Tool: func(name string) (string, error) { return "", errors.New("no " + name) }})
	for name, want := range map[string]Level{"gpu-support": OK, "driver": OK, "gpu": OK, "ncu": Missing, "config": Missing} {
		if i := slices.IndexFunc(r.Lines, func(l Probe) bool { return l.Name == name }); i < 0 || r.Lines[i].State != want {
			t.Errorf("%s: got %+v, want %s", name, r.Lines, want)
		}
	}
}

// doctor reports what fisub remote would refuse.
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
