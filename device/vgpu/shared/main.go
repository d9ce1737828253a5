//go:build linux && cgo

// Command shared is the virtual GPU as a C library for other processes (go build -buildmode=c-shared). The caller frees
// returned texts with fisub_free.
package main

/*
#include <stdint.h>
#include <stdlib.h>
*/
import "C"

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"fisub/device"
	"fisub/device/counters"
	"fisub/device/vgpu"
	"fisub/internal/ledger"
	"fisub/internal/plain"
)

var (
	machine = vgpu.Host()
	mu      sync.Mutex
	kernels []*vgpu.Kernel
	program bool // this process runs a program, not a submission
)

func main() {}

// folder matches the folder of a Python solution's sources. It differs between runs, but Triton's cache keeps old
// paths.
var folder = regexp.MustCompile(`^.*/python/[0-9a-f]{32}/[^/]+/`)

// fisub_load loads a PTX text with one kernel. *kernel is set to its number, *params to its number of parameters. The
// result is an error text or NULL.
//
//export fisub_load
func fisub_load(text *C.char, kernel, params *C.int) *C.char {
	mod, err := machine.Load(C.GoString(text))
	if err != nil {
		return C.CString(err.Error())
	}
	if mod.Rename = vgpu.SourceName; !program {
		mod.Rename = func(path string) string { return folder.ReplaceAllString(path, "") }
	}
	names := mod.Names()
	if len(names) != 1 {
		return C.CString("not one kernel")
	}
	k, err := mod.Kernel(names[0])
	if err != nil {
		return C.CString(err.Error())
	}
	mu.Lock()
	defer mu.Unlock()
	kernels = append(kernels, k)
	*kernel, *params = C.int(len(kernels)-1), C.int(len(k.Params()))
	return nil
}

// fisub_home calls vgpu.Home and sets *home to the folder. The result is an error text or NULL.
//
//export fisub_home
func fisub_home(root *C.char, home **C.char) *C.char {
	dir, err := vgpu.Home(context.Background(), C.GoString(root))
	if err != nil {
		return C.CString(err.Error())
	}
	*home = C.CString(dir)
	return nil
}

// fisub_map lets kernels of the CUDA runtime use memory until fisub_unmap.
//
//export fisub_map
func fisub_map(base, size C.uint64_t, name *C.char) {
	machine.Map(uintptr(base), int(size), C.GoString(name), false)
}

//export fisub_unmap
func fisub_unmap(base C.uint64_t) { machine.Unmap(uintptr(base)) }

// fisub_verdict returns the outcome of the kernels of the CUDA runtime since the last call, like fisub_launch.
//
//export fisub_verdict
func fisub_verdict(text **C.char) C.int {
	err := vgpu.Verdict()
	if err == nil {
		return done
	}
	var call *device.CallError
	if errors.As(err, &call) {
		*text = C.CString(call.Text)
		return faulted
	}
	*text = C.CString(strings.TrimPrefix(err.Error(), device.ErrUnsupported.Error()+": "))
	return lacks
}

// fisub_pending takes the error of the CUDA runtime that host code of this thread has ignored. The result is a text or
// NULL.
//
//export fisub_pending
func fisub_pending() *C.char {
	if err := vgpu.Pending(); err != nil {
		return C.CString(err.Error())
	}
	return nil
}

// Results of fisub_launch and fisub_verdict.
const (
	done = iota
	faulted
	lacks // the kernel needs a feature that the virtual GPU does not support
)

// fisub_launch runs a kernel to its end. The first bytes of each value hold a parameter. The kernel may use the n
// ranges of memory, which must not overlap. *text is set to the error message, if any.
//
//export fisub_launch
func fisub_launch(kernel C.int, grid *C.int, threads, shared C.int, values *C.uint64_t, n C.int, bases,
	sizes *C.uint64_t, names **C.char, text **C.char) C.int {
	mu.Lock()
	k := kernels[kernel]
	mu.Unlock()
	l := vgpu.Launch{Block: [3]int{int(threads), 1, 1}, Cluster: [3]int{1, 1, 1}, Shared: int(shared)}
	for i := range 3 {
		l.Grid[i] = int(unsafe.Slice(grid, 3)[i])
	}
	params := k.Params()
	for i, v := range unsafe.Slice(values, len(params)) {
		if end := params[i][0] + params[i][1]; end > len(l.Params) {
			l.Params = append(l.Params, make([]byte, end-len(l.Params))...)
		}
		copy(l.Params[params[i][0]:][:params[i][1]], unsafe.Slice((*byte)(unsafe.Pointer(&v)), 8))
	}
	for i, base := range unsafe.Slice(bases, int(n)) {
		machine.Map(uintptr(base), int(unsafe.Slice(sizes, int(n))[i]), C.GoString(unsafe.Slice(names, int(n))[i]), false)
		defer machine.Unmap(uintptr(base))
	}
	// In a Triton kernel every warp loads the data common to all warps, and only the first one stores it: no race.
	var err error
	if program {
		ends := make(chan os.Signal, 1)
		signal.Notify(ends, os.Interrupt, syscall.SIGTERM)
		go func() {
			if end, ok := <-ends; ok {
				vgpu.End(128 + int(end.(syscall.Signal)))
			}
		}()
		err = vgpu.RunProgram(k, l)
		signal.Stop(ends)
		close(ends)
	} else {
		check := machine.Check
		machine.Check &^= vgpu.Races
		err = machine.Run(k, l)
		machine.Check = check
	}
	if err == nil {
		return done
	}
	*text = C.CString(err.Error())
	var f *vgpu.Fault
	if errors.As(err, &f) && f.Missing {
		return lacks
	}
	if machine.OnHazard != nil && !program {
		machine.OnHazard(device.Hazard{Kind: device.Faulted, Text: err.Error()})
	}
	return faulted
}

// fisub_look begins a call. If closely is set, the call is the first of a workload: CUDA kernels are checked for races,
// all kernels for reads of unwritten local memory; 2: as Machine.Begin says.
//
//export fisub_look
func fisub_look(closely C.int) {
	check := machine.Strict
	if machine.RacesUntil = vgpu.FirstRacesUntil; check != 0 {
		machine.RacesUntil = 0
	} else if closely != 0 {
		check = vgpu.Races | vgpu.UnwrittenLocal
		machine.Workload++
	}
	machine.Begin(check, closely == 2)
}

// fisub_sanitize makes the findings of tools, which are separated by commas, faults in all launches.
//
//export fisub_sanitize
func fisub_sanitize(tools *C.char) { machine.Strict = vgpu.Sanitized(C.GoString(tools)) }

// fisub_count is Machine.Count.
//
//export fisub_count
func fisub_count(sample C.int) { machine.Count(int(sample)) }

// fisub_ledger records hazards and faults in the memory of a package ledger at p, as lines of device.Hazard in JSON.
//
//export fisub_ledger
func fisub_ledger(p unsafe.Pointer) {
	l := ledger.At(p)
	machine.OnHazard = func(h device.Hazard) {
		if line, err := json.Marshal(h); err == nil {
			l.Add(line)
		}
	}
}

// fisub_forget makes the machine record known hazards again.
//
//export fisub_forget
func fisub_forget() { machine.TakeHazards() }

// fisub_worked returns 2 if a kernel was launched since the last call, 1 if only memory was copied or set, else 0.
//
//export fisub_worked
func fisub_worked() C.int {
	switch launched, worked := machine.Launched(), machine.Worked(); {
	case launched:
		return 2
	case worked:
		return 1
	}
	return 0
}

// fisub_emu lets this process run on the virtual GPU, configured by environment variables that `fisub emu` sets. The
// CUDA runtime calls it when it is loaded. Events with a text are printed on stderr at once, and the kind of every
// event is appended to the report. Progress is shown if stderr is a terminal and FISUB_EMU_PROGRESS is set. SIGINT and
// SIGTERM end the process after printing the place of the running kernel. The result is an error text or
// NULL.
//
//export fisub_emu
func fisub_emu() *C.char {
	if program { // a program in Python, which has called fisub_program
		return nil
	}
	if err := attach(os.Getenv("FISUB_EMU_RUNTIME"), os.Stderr); err != nil {
		return C.CString(err.Error())
	}
	ends := make(chan os.Signal, 1)
	signal.Notify(ends, os.Interrupt, syscall.SIGTERM)
	go func() { vgpu.End(128 + int((<-ends).(syscall.Signal))) }()
	return nil
}

// fisub_program is fisub_emu for a program in Python. Texts are printed to the descriptor messages. Signals end the
// process while a kernel of Triton runs; at other times they are Python's.
//
//export fisub_program
func fisub_program(messages C.int) *C.char {
	program = true
	if err := attach("", os.NewFile(uintptr(messages), "stderr")); err != nil {
		return C.CString(err.Error())
	}
	return nil
}

// attach calls vgpu.Attach for a program whose messages go to stderr.
func attach(runtime string, stderr *os.File) error {
	report, err := os.OpenFile(os.Getenv("FISUB_EMU_REPORT"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	words := map[vgpu.Event]string{vgpu.Hazard: "warning: ", vgpu.Faulted: "fault: ", vgpu.Note: "note: "}
	_, terr := unix.IoctlGetTermios(int(stderr.Fd()), unix.TCGETS)
	progress := os.Getenv("FISUB_EMU_PROGRESS") != "" && terr == nil // the program may run in a shell with 2>FILE
	var mu sync.Mutex
	remove := "" // removes the progress from the terminal
	notify := func(e vgpu.Event, text string) {
		mu.Lock()
		defer mu.Unlock()
		if e == vgpu.Progress && !progress {
			return
		}
		_, _ = report.Write([]byte{byte(e)})
		switch {
		case e == vgpu.Progress:
			_, _ = stderr.WriteString(plain.Passing(text))
			remove = plain.Passing("")
		case text != "":
			fmt.Fprintln(stderr, remove+"fisub: "+words[e]+text)
		}
	}
	folder, _ := os.Getwd()
	if err := vgpu.Attach(runtime, folder, os.Getenv("FISUB_EMU_SANITIZE"), notify); err != nil {
		return err
	}
	if path := os.Getenv("FISUB_EMU_COUNTERS"); path != "" {
		to, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			return err
		}
		machine.OnCounters = func(l counters.Launch) {
			if line, err := json.Marshal(l); err == nil {
				_, _ = to.Write(append(line, '\n'))
			}
		}
	}
	return nil
}

// fisub_free frees a text.
//
//export fisub_free
func fisub_free(text *C.char) { C.free(unsafe.Pointer(text)) }
