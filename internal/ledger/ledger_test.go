package ledger

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"
	"unsafe"
)

func TestLedger(t *testing.T) {
	reader, f, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	writer, err := Open(f)
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	f.Close()
	take := func() string {
		t.Helper()
		lines, whole := reader.Take()
		if !whole {
			t.Error("got that lines were lost")
		}
		return fmt.Sprintf("%s", lines)
	}
	if got := take(); got != "[]" {
		t.Errorf("got %s before the first line", got)
	}
	writer.Add([]byte("one"))
	At(unsafe.Pointer(&writer.data[0])).Add([]byte("two"))
	if got := take(); got != "[one two]" {
		t.Errorf("got %s, want both lines", got)
	}
	writer.Add([]byte("three"))
	if got := take(); got != "[three]" {
		t.Errorf("got %s, want the third line", got)
	}

	// The reader notices a list that was shortened, and one that is full, and never leaves the memory.
	binary.NativeEndian.PutUint64(writer.data, 3)
	if _, whole := reader.Take(); whole {
		t.Error("got a shortened list as whole")
	}
	long := bytes.Repeat([]byte("x"), Size/10)
	for range 20 {
		writer.Add(long)
	}
	if lines, whole := reader.Take(); whole {
		t.Errorf("got %d lines of a full list as whole", len(lines))
	}
	for _, used := range []uint64{0, 1 << 63, Size, 7} {
		binary.NativeEndian.PutUint64(writer.data, used)
		_, _ = reader.Take()
		writer.Add([]byte("more"))
	}
}
