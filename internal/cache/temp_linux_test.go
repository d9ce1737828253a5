package cache

import (
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
)

// A temporary folder goes also if a submission has made folders in it that their owner may not list.
func TestTempDirOfModes(t *testing.T) {
	t.Setenv("TMPDIR", "/tmp") // nobody's, below root's folder, could not be reached
	dir, remove, err := TempDir("fisub-modes")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	const nobody = 65534
	done := make(chan error)
	go func() { // as a plain user: root may list every folder
		runtime.LockOSThread()
		if os.Getuid() == 0 {
			_ = os.Chown(dir, nobody, nobody)
			_ = syscall.Setfsuid(nobody)
		}
		sub := filepath.Join(dir, "a", "b")
		err := os.MkdirAll(sub, 0o700)
		if err == nil {
			err = os.WriteFile(filepath.Join(sub, "c"), nil, 0o600)
		}
		if err == nil {
			err = os.Chmod(sub, 0o300)
		}
		if err == nil {
			err = os.Chmod(filepath.Dir(sub), 0)
		}
		remove()
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("the folder is still there")
	}
}
