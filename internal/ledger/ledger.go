// Package ledger is a list of lines in memory that two processes share: one adds, the other takes. A line is there for
// the reader at once, whatever later happens to the writer's pipes. The writer's process can still change the memory
// itself.
package ledger

import (
	"bytes"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"fisub/internal/memfile"
)

// Size is the size of the shared memory in bytes. The first 8 hold the number of bytes of lines after them.
const Size = 16 << 20

// A Ledger is one end. Its methods may be called concurrently.
type Ledger struct {
	mu    sync.Mutex
	data  []byte
	taken int // bytes of lines that Take has returned
}

// New returns the reader's end, and the file for Open in the writer's process.
func New() (*Ledger, *os.File, error) {
	f, err := memfile.New("fisub-ledger", Size)
	if err != nil {
		return nil, nil, err
	}
	l, err := Open(f)
	if err != nil {
		f.Close()
	}
	return l, f, err
}

// Open maps the memory in f, which the caller may close.
func Open(f *os.File) (*Ledger, error) {
	data, err := unix.Mmap(int(f.Fd()), 0, Size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	return &Ledger{data: data}, nil
}

// At returns the writer's end for memory that is already mapped.
func At(p unsafe.Pointer) *Ledger { return &Ledger{data: unsafe.Slice((*byte)(p), Size)} }

func (l *Ledger) used() *uint64 { return (*uint64)(unsafe.Pointer(&l.data[0])) }

// Add adds a line, which has no line break. If the memory is full, it drops the line, and Take reports damage from then
// on.
func (l *Ledger) Add(line []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	used := atomic.LoadUint64(l.used())
	if room := uint64(Size - 8); used > room || uint64(len(line)) >= room-used {
		atomic.StoreUint64(l.used(), math.MaxUint64)
		return
	}
	n := copy(l.data[8+used:], line)
	l.data[8+int(used)+n] = '\n'
	atomic.StoreUint64(l.used(), used+uint64(n)+1)
}

// Take returns copies of the lines added since its last call, none after Close. They are unverified. whole is false if
// lines were lost: the memory is full, or something else has changed it.
func (l *Ledger) Take() (lines [][]byte, whole bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.data == nil {
		return nil, true
	}
	size := atomic.LoadUint64(l.used())
	if size > Size-8 || int(size) < l.taken {
		return nil, false
	}
	used := int(size)
	added := bytes.Clone(l.data[8+l.taken : 8+used])
	l.taken = used
	for line := range bytes.Lines(added) {
		lines = append(lines, bytes.TrimSuffix(line, []byte("\n")))
	}
	return lines, true
}

// Close unmaps the memory. It is only for ends of New and Open.
func (l *Ledger) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.data != nil {
		_ = unix.Munmap(l.data)
		l.data = nil
	}
}
