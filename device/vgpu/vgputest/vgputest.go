// Package vgputest provides the virtual GPU to Python tests. Release builds contain it (scripts/build), go test does
// not.
package vgputest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

// Library builds the virtual GPU's library once and sets FISUB_VGPU_LIBRARY for bench/pyworker. It needs the go
// command.
var Library = sync.OnceValue(func() error {
	mod, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return err
	}
	dir := filepath.Join(filepath.Dir(strings.TrimSpace(string(mod))), "dist", "test")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	// Tests of several packages may build it at once.
	temp, name := filepath.Join(dir, fmt.Sprintf("vgpu.%d.so", os.Getpid())), filepath.Join(dir, "vgpu.so")
	build := exec.Command("go", "build", "-buildmode=c-shared", "-o", temp, "fisub/device/vgpu/shared")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("building the virtual GPU's library: %w\n%s", err, out)
	}
	if err := os.Remove(strings.TrimSuffix(temp, "so") + "h"); err != nil {
		return err
	}
	if err := os.Rename(temp, name); err != nil {
		return err
	}
	return os.Setenv("FISUB_VGPU_LIBRARY", name)
})
