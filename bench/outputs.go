package bench

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"fisub/bench/worker"
	"fisub/internal/cache"
	"fisub/internal/tensor"
)

// An output is what a solution wrote or returned. A value-returning solution may return any shape and dtype.
type output struct {
	dtype  string // also of a dtype that the format lacks, such as float64
	shape  []int
	tensor *tensor.Tensor // nil for such a dtype
}

// An outFile takes the outputs of one worker. The zero value is ready for use.
type outFile struct {
	f    *os.File
	size int64
}

// room makes the file at least size bytes long.
func (o *outFile) room(size int64) error {
	if o.f == nil {
		f, err := cache.TempFile(scratchDir(), "fisub-outputs")
		if err != nil {
			return err
		}
		o.f = f
	}
	if size > o.size {
		if err := extend(o.f, size); err != nil {
			return err
		}
		o.size = size
	}
	return nil
}

func (o *outFile) path() string { return o.f.Name() }

func (o *outFile) close() {
	if o.f != nil {
		o.f.Close()
		os.Remove(o.f.Name())
		o.f = nil
	}
}

// extend makes f, which is to be mapped, size bytes long. The room must be there: whoever writes to a mapped file on a
// full disk is ended.
func extend(f *os.File, size int64) error {
	var st unix.Statfs_t
	if unix.Fstatfs(int(f.Fd()), &st) == nil && uint64(st.Bsize)*st.Bavail < uint64(size) {
		return &fs.PathError{Op: "write", Path: f.Name(), Err: unix.ENOSPC}
	}
	return f.Truncate(size)
}

// scratchDir is a folder in memory where there is one: outputs are written once and read once.
func scratchDir() string {
	var st unix.Statfs_t
	if unix.Statfs("/dev/shm", &st) == nil && uint64(st.Bsize)*st.Bavail > 4<<30 {
		return "/dev/shm"
	}
	return os.TempDir()
}

// read maps what the worker says that it wrote. The descriptions are the worker's word; those that do not fit the
// file are a *worker.Error of kind Call.
func (o *outFile) read(written []worker.FileTensor) (outs []output, unmap func(), err error) {
	st, err := o.f.Stat()
	if err != nil {
		return nil, nil, err
	}
	o.size = st.Size()
	var data []byte
	unmap = func() {}
	if o.size > 0 {
		if data, err = unix.Mmap(int(o.f.Fd()), 0, int(o.size), unix.PROT_READ, unix.MAP_SHARED); err != nil {
			return nil, nil, fmt.Errorf("mapping %s: %w", filepath.Base(o.f.Name()), err)
		}
		unmap = func() { _ = unix.Munmap(data) }
	}
	for i, w := range written {
		out := output{dtype: w.DType, shape: w.Shape}
		n, ok := tensor.Elements(w.Shape)
		if dtype, known := tensor.ParseDType(w.DType); ok && known {
			size, fits := dtype.Bytes(n)
			if !fits || size != w.Bytes || w.Offset < 0 || size > 0 && w.Offset > o.size-int64(size) {
				unmap()
				return nil, nil, lie("output %d: the worker's %s%v of %d bytes at %d is not in its file", i, w.DType, w.Shape,
					w.Bytes, w.Offset)
			}
			out.tensor = &tensor.Tensor{DType: dtype, Shape: w.Shape}
			if size > 0 {
				out.tensor.Data = data[w.Offset : w.Offset+int64(size) : w.Offset+int64(size)]
			}
		} else if !ok {
			unmap()
			return nil, nil, lie("output %d: the worker's shape %v is out of range", i, w.Shape)
		}
		outs = append(outs, out)
	}
	return outs, unmap, nil
}

func lie(format string, args ...any) error {
	return &worker.Error{Kind: worker.Call, Text: fmt.Sprintf(format, args...)}
}
