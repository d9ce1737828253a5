package memfile

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

func TestNew(t *testing.T) {
	f, err := New("test", 4096)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(0); err == nil {
		t.Error("shortened")
	}
	if _, err := f.WriteAt([]byte("x"), 0); err != nil {
		t.Error(err)
	}
	if err := f.Truncate(8192); err != nil {
		t.Error(err)
	}
}

func TestFreeze(t *testing.T) {
	f, err := New("test", 4096)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	own, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(own) //nolint:errcheck // of a mapping that was made above
	if err := Freeze(f); err != nil {
		t.Fatal(err)
	}
	own[0] = 1
	if _, err := f.WriteAt([]byte("x"), 0); err == nil {
		t.Error("written")
	}
	if err := f.Truncate(8192); err == nil {
		t.Error("lengthened")
	}
	if err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 4096); err == nil {
		t.Error("emptied")
	}
	if other, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
		t.Error("mapped for writing")
		_ = unix.Munmap(other)
	}
	if own[0] != 1 {
		t.Error("the first mapping holds another byte")
	}
}

// A process that has a file cannot stop its creator from writing to it or extending it.
func TestSettle(t *testing.T) {
	f, err := New("x", 10)
	if err == nil {
		err = Settle(f)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, s := range []int{unix.F_SEAL_GROW, unix.F_SEAL_WRITE, unix.F_SEAL_FUTURE_WRITE} {
		if err := seal(f, s); !errors.Is(err, unix.EPERM) {
			t.Errorf("seal %d: got %v, want EPERM", s, err)
		}
	}
	if _, err := f.WriteAt([]byte("x"), 0); err != nil {
		t.Error(err)
	}
	if err := f.Truncate(20); err != nil {
		t.Error(err)
	}
}
