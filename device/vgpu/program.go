//go:build linux && cgo

package vgpu

/*
#include <stdio.h>
#include "glue.h"
*/
import "C"

import (
	"errors"
	"os"
	"strings"
	"sync"
	"time"

	"fisub/device"
)

// attached holds the arguments of Attach, for a process that runs a program instead of a submission.
var attached struct {
	folder  string
	runtime string // path of the CUDA runtime
	notify  func(Event, string)

	running sync.Mutex   // held while a kernel runs
	every   Hazards      // checked in every launch
	checked map[any]bool // shapes and forms; false: Unchecked was sent
	again   map[form]int // launches of a checked form after the first
	// Warp instructions that were checked for races: in the first launches of a kernel and block, in other launches.
	inNew, inOthers uint64
}

// selected are the hazards that the launches which launchChecks selects are checked for.
const selected = Races | UnwrittenLocal | UnwrittenGlobal

// Attach lets this process, a program with its own main, run on the virtual GPU through the CUDA runtime at path,
// which it has loaded, or through RunProgram if path is "". Each launch is checked for the hazards of tools (see
// Sanitized), and the launches that launchChecks selects for all others. notify is called with all hazards; those that
// only a tool looks for are faults. Messages name sources relative to folder. notify is called before the runtime call
// that caused the event returns; it must not use the virtual GPU.
func Attach(path, folder, tools string, notify func(Event, string)) error {
	m := host.machine
	attached.every = Sanitized(tools)
	m.Check, m.Strict = attached.every|selected, attached.every&Ended
	if attached.every&Races != 0 {
		m.order = &order{m: m, count: map[string]int{}, reported: map[string]bool{}}
	}
	m.OnHazard = func(h device.Hazard) {
		if h.Kind == device.Progress {
			notify(Progress, h.Text)
		} else {
			notify(Hazard, h.Text)
		}
	}
	m.OnNote = func(text string) { notify(Note, text) }
	attached.folder, attached.runtime, attached.notify = folder, path, notify
	attached.checked, attached.again = map[any]bool{}, map[form]int{}
	notify(Attached, "")
	if path == "" {
		return nil
	}
	err := install(path)
	C.vg_host_begins()
	return err
}

// Sanitized returns the hazards that tools of compute-sanitizer, separated by commas, check for.
func Sanitized(tools string) (all Hazards) {
	for tool := range strings.SplitSeq(tools, ",") {
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

// Launches of a kernel and a block that are not new, but of another grid or more or less shared memory, and the second,
// third, fifth, ninth and so on of the same size are checked as long as the instructions of these checks are at most
//
//	freeChecks + 1/checkShare of those checked in other launches + 1/runShare of all others
//
// so that a program takes at most a tenth longer: a checked instruction takes about ten times as long.
const freeChecks, checkShare, runShare = 50_000, 16, 200

// fewestChecked is the smallest number of instructions left for which a check is worth starting.
const fewestChecked = 5_000

// launchChecks returns the number of instructions to check for races in a launch, or 0 if nothing is to be checked. If
// new is set, the kernel was not launched with this block before.
func launchChecks(k *Kernel, l *Launch) (until uint64, isNew bool) {
	f, s := l.form(k), l.shape(k)
	if !attached.checked[s] {
		attached.checked[s], attached.checked[f] = true, true
		return FirstRacesUntil, true
	}
	isChecked, late := attached.checked[f]
	if isChecked {
		attached.again[f]++
		if n := attached.again[f]; n&(n-1) != 0 {
			return 0, false
		}
	}
	budget := freeChecks + attached.inNew/checkShare + (host.machine.Executed-attached.inNew)/runShare
	if isChecked {
		budget /= 2 // the rest is for sizes that were not checked
	}
	if budget < attached.inOthers+fewestChecked {
		if !late {
			tell(Unchecked, "")
			attached.checked[f] = false
		}
		return 0, false
	}
	if late && !isChecked {
		tell(LaterChecked, "")
	}
	attached.checked[f] = true
	return min(laterRacesUntil, budget-attached.inOthers), false
}

// launching must be called before a launch of k, and done after it.
func launching(k *Kernel, l *Launch) (done func()) {
	if attached.notify == nil {
		return func() {}
	}
	attached.running.Lock()
	tell(Launched, "")
	m := host.machine
	m.Check, m.RacesUntil = attached.every, 0
	if attached.every&selected == selected {
		return attached.running.Unlock
	}
	until, isNew := launchChecks(k, l)
	if until == 0 {
		return attached.running.Unlock
	}
	if m.Check |= selected; attached.every&Races == 0 {
		m.RacesUntil = until
	}
	before := m.Executed
	return func() {
		n := min(m.Executed-before, until)
		if isNew {
			attached.inNew += n
		} else {
			attached.inOthers += n
		}
		attached.running.Unlock()
	}
}

// RunProgram runs a kernel of Triton in the process that has called Attach. A *Fault was passed to its listener.
func RunProgram(k *Kernel, l Launch) error {
	done := launching(k, &l)
	defer done()
	tell(Racy, "")
	m := host.machine
	m.Check &^= Races
	err := m.Run(k, l)
	var f *Fault
	if errors.As(err, &f) {
		if f.Missing {
			tell(Lacking, f.Text)
		} else {
			tell(Faulted, f.Text)
		}
	}
	return err
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
