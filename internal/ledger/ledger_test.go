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
	if got := reader.Take(); got != nil {
		t.Errorf("got %q before the first line", got)
	}
	writer.Add([]byte("one"))
	At(unsafe.Pointer(&writer.data[0])).Add([]byte("two"))
	if got := fmt.Sprintf("%s", reader.Take()); got != "[one two]" {
		t.Errorf("got %s, want both lines", got)
	}
	writer.Add([]byte("three"))
	if got := fmt.Sprintf("%s", reader.Take()); got != "[three]" {
		t.Errorf("got %s, want the third line", got)
	}

	// A full ledger drops lines, and the writer cannot make the reader leave the memory.
	long := bytes.Repeat([]byte("x"), 100<<10)
	for range 20 {
		writer.Add(long)
	}
	if got := len(reader.Take()); got != 10 {
		t.Errorf("got %d long lines, want 10", got)
	}
	for _, used := range []uint64{0, 1 << 63, Size, 7} {
		binary.NativeEndian.PutUint64(writer.data, used)
		reader.Take()
		writer.Add([]byte("more"))
	}
}
