//go:build linux && cgo

package vgpu

/*
#include <stdio.h>
#include "glue.h"
*/
import "C"

import (
	"os"
	"sync"
	"time"

	"fisub/device"
)

// An Event is something that a program's use of the virtual GPU comes to.
type Event byte

// Events of Attach.
const (
	Attached Event = 'a' // the program has loaded the virtual GPU
	Launched Event = 'k' // a kernel was launched
	Hazard   Event = 'h' // with its text, as the next ones
	Faulted  Event = 'f'
	Lacking  Event = 'l' // the virtual GPU lacks something that the program needs
	Stopped  Event = 's' // the program was ended while no kernel ran
	// The registers of a launched kernel are not known, so that its launches were not held against their limit.
	Unlimited Event = 'u'
)

// attached is what Attach was told, for a process that is no submission's.
var attached struct {
	folder string
	hear   func(Event, string)

	running sync.Mutex // is held while a kernel runs
	first   bool       // Look counts for the first launch of each kernel only
	looked  map[*Kernel]bool
}

// Attach lets this process, a program with its own main, run on the virtual GPU, by the CUDA runtime at path, which it
// has loaded. It makes what tools find faults; without tools, the first launch of each kernel is looked at, and hear is
// told of what it finds. Messages name sources relative to folder. hear is called before the call of the runtime
// returns that has led to the event; it must not use the virtual GPU.
func Attach(path, folder string, tools []string, hear func(Event, string)) error {
	m := host.machine
	m.Strict = hazards(tools)
	m.Look, m.RacesUntil = m.Strict, 0
	if len(tools) == 0 {
		m.Look, m.RacesUntil = Races|UnwrittenLocal|UnwrittenGlobal, LookUntil
	}
	m.Heard = func(h device.Hazard) { hear(Hazard, h.Text) }
	attached.folder, attached.hear = folder, hear
	attached.first, attached.looked = len(tools) == 0, map[*Kernel]bool{}
	hear(Attached, "")
	err := install(path)
	C.vg_host_begins()
	return err
}

// hazards are those that compute-sanitizer's tools of these names look for.
func hazards(tools []string) (all Hazards) {
	for _, tool := range tools {
		all |= sanitizers[tool]
	}
	return all
}

// tell lets the program's listener hear of an event.
func tell(e Event, text string) {
	if attached.hear != nil {
		attached.hear(e, text)
	}
}

// launching is called before a launch of k; what it returns, behind the launch.
func launching(k *Kernel) (done func()) {
	if attached.hear == nil {
		return func() {}
	}
	attached.running.Lock()
	tell(Launched, "")
	if _, ok := k.usage(); !ok {
		tell(Unlimited, "")
	}
	if attached.first {
		host.machine.Look = Races | UnwrittenLocal | UnwrittenGlobal
		if attached.looked[k] {
			host.machine.Look = 0
		}
		attached.looked[k] = true
	}
	return attached.running.Unlock
}

// End stops the kernel that runs, which hear is told of as of a fault, writes what the program has buffered, and ends
// the process. It waits for at most two seconds.
func End(status int) {
	idle := attached.running.TryLock()
	if idle {
		host.Lock()
		tell(Stopped, "no kernel was running")
		host.Unlock()
	} else {
		host.machine.Stop()
	}
	done := make(chan struct{})
	go func() {
		if !idle {
			attached.running.Lock()
		}
		C.fflush(nil)
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(2 * time.Second):
	}
	os.Exit(status)
}
