package ui

import (
	"io"
	"os"
	"sync"
)

// Watch returns a writer to w and a function that returns the first write error. Most printing code ignores write
// errors, but a lost result is not a success. The writer is a terminal if w is one.
func Watch(w io.Writer) (io.Writer, func() error) {
	o := &output{w: w}
	if f, ok := w.(*os.File); ok {
		return struct {
			*output
			file
		}{o, f}, o.failed
	}
	return o, o.failed
}

type output struct {
	w   io.Writer
	mu  sync.Mutex
	err error
}

func (o *output) Write(p []byte) (int, error) {
	n, err := o.w.Write(p)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		o.err = err
	}
	return n, err
}

func (o *output) failed() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}
