package cache

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// Leftovers of killed processes are removed, but nothing that is in use, new or named differently.
func TestTempSweeps(t *testing.T) {
	dir := t.TempDir()
	old := func(path string) {
		t.Helper()
		past := time.Now().Add(-time.Hour)
		if err := os.Chtimes(path, past, past); err != nil {
			t.Fatal(err)
		}
	}
	used, remove, err := TempDirIn(dir, "fisub-x")
	if err != nil {
		t.Fatal(err)
	}
	defer remove()
	old(used)
	want := map[string]bool{used: true}
	for name, stays := range map[string]bool{"fisub-x-7": false, "fisub-x-8": true, "fisub-y-7": true,
		"fisub-x-results": true, "fisub-x-y-7": true} {
		path := filepath.Join(dir, name)
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		if name != "fisub-x-8" {
			old(path)
		}
		want[path] = stays
	}
	link := filepath.Join(dir, "fisub-x-9")
	if err := os.Symlink("fisub-y-7", link); err != nil {
		t.Fatal(err)
	}
	want[link] = true
	if _, remove, err = TempDirIn(dir, "fisub-x"); err != nil {
		t.Fatal(err)
	}
	defer remove()
	for path, stays := range want {
		if _, err := os.Lstat(path); (err == nil) != stays {
			t.Errorf("%s: got %v, want it to stay: %t", filepath.Base(path), err, stays)
		}
	}
}

func TestTempDirSweeps(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	left := filepath.Join(os.TempDir(), "fisub-x-1")
	if err := os.MkdirAll(filepath.Join(left, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	past := time.Now().Add(-time.Hour)
	if err := os.Chtimes(left, past, past); err != nil {
		t.Fatal(err)
	}
	dir, remove, err := TempDir("fisub-x")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(left); err == nil {
		t.Error("the folder that was left is still there")
	}
	remove()
	if _, err := os.Stat(dir); err == nil {
		t.Error("the folder that was removed is still there")
	}
}

// Inaccessible folders are removed too. Modes do not stop root, so root runs this as another user.
func TestTempDirModes(t *testing.T) {
	if os.Getuid() == 0 {
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestTempDirModes$")
		cmd.Dir, cmd.Env = "/", []string{"TMPDIR=/tmp"}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		if out, err := cmd.CombinedOutput(); errors.Is(err, fs.ErrPermission) {
			t.Skip(err)
		} else if err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	t.Setenv("TMPDIR", t.TempDir())
	left := filepath.Join(os.TempDir(), "fisub-x-1")
	past := time.Now().Add(-time.Hour)
	fill := func(dir string) {
		t.Helper()
		sub := filepath.Join(dir, "a", "b")
		if err := errors.Join(os.MkdirAll(sub, 0o700), os.WriteFile(filepath.Join(sub, "file"), nil, 0o600),
			os.Chmod(sub, 0), os.Chmod(filepath.Dir(sub), 0o300)); err != nil {
			t.Fatal(err)
		}
	}
	fill(left)
	if err := errors.Join(os.Chtimes(left, past, past), os.Chmod(left, 0)); err != nil {
		t.Fatal(err)
	}
	dir, remove, err := TempDir("fisub-x")
	if err != nil {
		t.Fatal(err)
	}
	fill(dir)
	remove()
	for _, path := range []string{left, dir} {
		if _, err := os.Lstat(path); err == nil {
			t.Errorf("%s is still there", filepath.Base(path))
			_ = RemoveAll(path)
		}
	}
}

// A folder of a killed process is removed when the next one is filled. A folder being filled is kept.
func TestFolderSweeps(t *testing.T) {
	root := t.TempDir()
	parent := filepath.Join(root, "kind")
	for _, name := range []string{".a.1", ".b.2", ".c.3"} {
		if err := os.MkdirAll(filepath.Join(parent, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	unlock, err := lock(t.Context(), filepath.Join(parent, "b.lock"), syscall.LOCK_EX, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	if _, _, err := Folder(t.Context(), root, "kind", "a", func(string) error { return nil }); err != nil {
		t.Fatal(err)
	}
	for name, stays := range map[string]bool{".a.1": false, ".b.2": true, ".c.3": false} {
		if _, err := os.Stat(filepath.Join(parent, name)); (err == nil) != stays {
			t.Errorf("%s: got %v, want it to stay: %t", name, err, stays)
		}
	}
}
