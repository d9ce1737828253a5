package cache

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func TestPrune(t *testing.T) {
	root := t.TempDir()
	put := func(name string, size int, age time.Duration) {
		t.Helper()
		path := filepath.Join(root, name)
		at := time.Now().Add(-age)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, make([]byte, size), 0o644),
			os.Chtimes(path, at, at), os.Chtimes(filepath.Dir(path), at, at)); err != nil {
			t.Fatal(err)
		}
	}
	const day = 24 * time.Hour
	put("build/old/kernel", 10, 40*day)
	put("build/old.lock", 0, 40*day)
	put("build/large/kernel", 1<<20, 20*day)
	put("build/used/kernel", 1<<20, 21*day)
	put("blob/inputs.safetensors", 10, 30*time.Minute)
	if _, hit, err := Folder(t.Context(), root, "build", "used", nil); !hit || err != nil {
		t.Fatal(hit, err)
	}
	there := func(want ...string) {
		t.Helper()
		var got []string
		for _, name := range []string{"build/old", "build/old.lock", "build/large", "build/used", "blob/inputs.safetensors"} {
			if _, err := os.Stat(filepath.Join(root, name)); err == nil {
				got = append(got, name)
			}
		}
		if len(got) != len(want) {
			t.Errorf("got %v, want %v", got, want)
		}
	}
	release, err := Hold(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	if err := Prune(root, time.Hour, 0); err != nil {
		t.Error(err)
	}
	there("build/old", "build/old.lock", "build/large", "build/used", "blob/inputs.safetensors")
	release()
	if err := Prune(root, 30*day, 1<<30); err != nil {
		t.Error(err)
	}
	there("build/large", "build/used", "blob/inputs.safetensors")
	if err := Prune(root, 30*day, 1<<20+100<<10); err != nil { // later entries remain
		t.Error(err)
	}
	there("build/used", "blob/inputs.safetensors")
	if err := Prune(filepath.Join(root, "none"), day, 0); err != nil {
		t.Errorf("no cache: got %v", err)
	}
}

func TestPruneFiles(t *testing.T) {
	root := t.TempDir()
	for name, age := range map[string]time.Duration{"a/old": 40 * 24 * time.Hour, "a/b/large": 5 * time.Hour,
		"used": 3 * time.Hour, "new": time.Minute} {
		path, at := filepath.Join(root, name), time.Now().Add(-age)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, make([]byte, 1000), 0o644),
			os.Chtimes(path, at, at)); err != nil {
			t.Fatal(err)
		}
	}
	there := func(want ...string) {
		t.Helper()
		var got []string
		for _, name := range []string{"a/old", "a/b/large", "used", "new"} {
			if _, err := os.Stat(filepath.Join(root, name)); err == nil {
				got = append(got, name)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	}
	Use(filepath.Join(root, "used"))
	for _, step := range []struct {
		size int64
		want []string
	}{
		{1 << 20, []string{"a/b/large", "used", "new"}},
		{2000, []string{"used", "new"}},
		{0, []string{"used", "new"}}, // both may be about to be opened
	} {
		if err := PruneFiles(root, 30*24*time.Hour, step.size); err != nil {
			t.Error(err)
		}
		there(step.want...)
	}
	if err := PruneFiles(filepath.Join(root, "none"), time.Hour, 0); err != nil {
		t.Errorf("no folder: got %v", err)
	}
}
