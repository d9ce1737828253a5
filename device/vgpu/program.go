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

// attached holds the arguments of Attach, for a process that runs a program instead of a submission.
var attached struct {
	folder string
	notify func(Event, string)

	running sync.Mutex // held while a kernel runs
	first   bool       // check only the first launch of each kernel
	checked map[*Kernel]bool
}

// Attach lets this process, a program with its own main, run on the virtual GPU through the CUDA runtime at path, which
// it has loaded. Hazards that tools check for are faults; without tools, the first launch of each kernel is checked and
// notify is called with its hazards. Messages name sources relative to folder. notify is called before the runtime call
// that caused the event returns; it must not use the virtual GPU.
func Attach(path, folder string, tools []string, notify func(Event, string)) error {
	m := host.machine
	m.Strict = hazards(tools)
	m.Check, m.RacesUntil = m.Strict, 0
	if len(tools) == 0 {
		m.Check, m.RacesUntil = Races|UnwrittenLocal|UnwrittenGlobal, FirstRacesUntil
	}
	m.OnHazard = func(h device.Hazard) { notify(Hazard, h.Text) }
	m.OnNote = func(text string) { notify(Note, text) }
	attached.folder, attached.notify = folder, notify
	attached.first, attached.checked = len(tools) == 0, map[*Kernel]bool{}
	notify(Attached, "")
	err := install(path)
	C.vg_host_begins()
	return err
}

// hazards returns the hazards that the named tools of compute-sanitizer check for.
func hazards(tools []string) (all Hazards) {
	for _, tool := range tools {
		all |= sanitizers[tool]
	}
	return all
}

// tell passes an event to the program's listener, if there is one.
func tell(e Event, text string) {
	if attached.notify != nil {
		attached.notify(e, text)
	}
}

// launching must be called before a launch of k, and done after it.
func launching(k *Kernel) (done func()) {
	if attached.notify == nil {
		return func() {}
	}
	attached.running.Lock()
	tell(Launched, "")
	if _, ok := k.usage(); !ok {
		tell(Unlimited, "")
	}
	if attached.first {
		host.machine.Check = Races | UnwrittenLocal | UnwrittenGlobal
		if attached.checked[k] {
			host.machine.Check = 0
		}
		attached.checked[k] = true
	}
	return attached.running.Unlock
}

// End stops the running kernel, which is reported like a fault, flushes the program's output, and ends the process. It
// waits at most two seconds.
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
