package cuda

import (
	"context"
	"debug/elf"
	"errors"
	"os"
	"strings"
	"testing"

	"fisub/device"
)

func TestOpen(t *testing.T) {
	d, err := Opener().Open(context.Background(), device.Options{})
	if err != nil {
		if d != nil || !errors.Is(err, ErrUnavailable) || !strings.HasPrefix(err.Error(), "cuda: device unavailable: ") {
			t.Errorf("got %v, %v, want an error that wraps ErrUnavailable", d, err)
		}
		t.Logf("here: %v", err)
		return
	}
	info := d.Info()
	if info.Name == "" || !strings.HasPrefix(info.Arch, "sm_") || info.Driver == "" || info.MemoryBytes <= 0 ||
		info.L2Bytes <= 0 ||
		info.Multiprocessors <= 0 || !strings.HasPrefix(info.UUID, "GPU-") || info.Emulated {
		t.Errorf("got %+v, want a described GPU", info)
	}
	t.Logf("here: %+v", info)
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if _, err := d.Alloc(1); err == nil {
		t.Error("Alloc after Close: got no error")
	}
	for _, ordinal := range []int{-1, 1000} {
		_, err := Opener().Open(context.Background(), device.Options{Ordinal: ordinal})
		if !errors.Is(err, ErrOrdinal) || !strings.Contains(err.Error(), "0 ("+info.Name+")") {
			t.Errorf("ordinal %d: got %v, want an error that wraps ErrOrdinal and lists what is there", ordinal, err)
		}
	}
}

// With or without the tag, a binary with this package starts without a driver, and its symbols do not shadow the
// driver's.
func TestBinary(t *testing.T) {
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	f, err := elf.Open(path)
	if err != nil {
		t.Skipf("not an ELF system: %v", err)
	}
	defer f.Close()
	libs, err := f.ImportedLibraries()
	if err != nil && !errors.Is(err, elf.ErrNoSymbols) {
		t.Fatal(err)
	}
	for _, lib := range libs {
		if strings.HasPrefix(lib, "libcuda") {
			t.Errorf("got %s among the needed libraries %q", lib, libs)
		}
	}
	symbols, err := f.DynamicSymbols()
	if err != nil && !errors.Is(err, elf.ErrNoSymbols) {
		t.Fatal(err)
	}
	for _, s := range symbols {
		if strings.HasPrefix(s.Name, "cuInit") || strings.HasPrefix(s.Name, "cuMem") {
			t.Errorf("got dynamic symbol %s", s.Name)
		}
	}
}
