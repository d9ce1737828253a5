package ui

import "sync"

// Sums is one progress bar for the bytes of several transfers. It is safe for concurrent use.
type Sums struct {
	term        *Terminal
	label       string
	mu          sync.Mutex
	bar         *Bar
	sent, total map[string]int64
	sum         int64
}

// Set records the progress of a transfer.
func (b *Sums) Set(name string, sent, total int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.sent == nil {
		b.sent, b.total = map[string]int64{}, map[string]int64{}
	}
	b.sent[name], b.total[name] = sent, total
	var now, all int64
	for name := range b.total {
		now, all = now+b.sent[name], all+b.total[name]
	}
	if all != b.sum {
		b.bar.Finish()
		b.bar, b.sum = b.term.Bar(all, b.label, true), all
	}
	b.bar.Set(now)
	if now == all {
		b.bar.Finish()
	}
}

// Finish removes the bar from the screen for good.
func (b *Sums) Finish() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bar.Finish()
}

// Sums returns a bar with the given label.
func (t *Terminal) Sums(label string) *Sums { return &Sums{term: t, label: label} }
