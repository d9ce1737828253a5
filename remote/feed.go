package remote

import (
	"fmt"
	"sync"
)

// Slots gives n places, none where n is below 1, that have names only to be told apart: the provider chooses the host.
func Slots(name string, n int) (places []Place) {
	for i := range n {
		places = append(places, Place{Host: fmt.Sprintf("%s%d", name, i+1), GPU: -1})
	}
	return places
}

// A Feed is the way of one Wait to its Watcher: it counts what was written, and tells a State only where it is another
// one than the last.
type Feed struct {
	To   Watcher
	At   int64 // offset in the stream of the next byte
	Last Stage
	Err  error // a *LocalError where To has failed; it ends the Wait
}

// Write hands bytes of the stream on.
func (f *Feed) Write(p []byte) (int, error) {
	n, err := f.To.Write(p)
	f.At += int64(n)
	f.Err = Local(err)
	return n, f.Err
}

// Tell tells what the job does.
func (f *Feed) Tell(phase Phase, text string) { f.State(Stage{Phase: phase, Text: text}) }

// State does as Tell.
func (f *Feed) State(s Stage) {
	if s != f.Last {
		f.Last = s
		f.To.State(s)
	}
}

// A Progress tells the function that a Submit is given how much was sent. It is safe for concurrent use.
type Progress struct {
	Tell func(sent, total int64) // may be nil

	mu          sync.Mutex
	sent, total int64
}

// Begin tells that total bytes are to be sent.
func (p *Progress) Begin(total int64) {
	p.total = total
	p.Sent(0)
}

// Sent tells that n more bytes were sent; below zero they are sent again.
func (p *Progress) Sent(n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sent = min(p.sent+n, p.total)
	if p.Tell != nil {
		p.Tell(p.sent, p.total)
	}
}

// Write tells of the bytes, and drops them.
func (p *Progress) Write(b []byte) (int, error) {
	p.Sent(int64(len(b)))
	return len(b), nil
}

// End makes that nothing more is told.
func (p *Progress) End() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.Tell = nil
}

// A Worded error has other words than the one that it wraps, whose own may be long or hold a secret.
type Worded struct {
	Text string
	Err  error
}

func (w *Worded) Error() string { return w.Text }
func (w *Worded) Unwrap() error { return w.Err }
