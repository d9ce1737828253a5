//go:build linux && cgo

// Command shared is the virtual GPU as a C library, for processes that are not fisub's: go build -buildmode=c-shared.
// Texts that it returns are the caller's, who frees them with fisub_free.
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

	"fisub/device"
	"fisub/device/vgpu"
)

var (
	machine = vgpu.Host()
	mu      sync.Mutex
	kernels []*vgpu.Kernel
)

func main() {}

// folder is that of a Python solution's sources, which other runs had elsewhere: Triton keeps what it has compiled.
var folder = regexp.MustCompile(`^.*/python/[0-9a-f]{32}/[^/]+/`)

// fisub_load loads the one kernel of a PTX text. *kernel becomes its number, and *params how many parameters it has.
// The result is an error's text, or NULL.
//
//export fisub_load
func fisub_load(text *C.char, kernel, params *C.int) *C.char {
	mod, err := machine.Load(C.GoString(text))
	if err != nil {
		return C.CString(err.Error())
	}
	mod.Rename = func(path string) string { return folder.ReplaceAllString(path, "") }
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

// fisub_home finds what vgpu.Home does: *home becomes the folder. The result is an error's text, or NULL.
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

// fisub_map lets kernels of the CUDA runtime use memory, until fisub_unmap.
//
//export fisub_map
func fisub_map(base, size C.uint64_t, name *C.char) {
	machine.Map(uintptr(base), int(size), C.GoString(name), false)
}

//export fisub_unmap
func fisub_unmap(base C.uint64_t) { machine.Unmap(uintptr(base)) }

// fisub_verdict is what kernels of the CUDA runtime have done since the last call, as fisub_launch tells it.
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
	*text = C.CString(strings.TrimPrefix(err.Error(), device.ErrLacking.Error()+": "))
	return lacks
}

// Results of fisub_launch and fisub_verdict.
const (
	done = iota
	faulted
	lacks // the virtual GPU has not what the kernel needs
)

// fisub_launch runs a kernel to its end. Each of its parameters is in a value, in the first of its bytes. It may use
// the n ranges of memory, which do not overlap. *text becomes what went wrong.
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
	look := machine.Look
	// Every warp of a Triton kernel loads what is the same for all warps, and only the first one stores it.
	machine.Look &^= vgpu.Races
	err := machine.Run(k, l)
	machine.Look = look
	if err == nil {
		return done
	}
	*text = C.CString(err.Error())
	var f *vgpu.Fault
	if errors.As(err, &f) && f.Missing {
		return lacks
	}
	return faulted
}

// fisub_look begins a call, the first of a workload if it is to be examined closely: the kernels of CUDA for races, all
// for reads of local memory that nothing wrote.
//
//export fisub_look
func fisub_look(closely C.int) {
	machine.Look, machine.RacesUntil = 0, vgpu.LookUntil
	if closely != 0 {
		machine.Look = vgpu.Races | vgpu.UnwrittenLocal
		machine.Workload++
	}
}

// fisub_hazards returns the hazards since the last call, as a list of device.Hazard in JSON.
//
//export fisub_hazards
func fisub_hazards() *C.char {
	list, err := json.Marshal(machine.TakeHazards())
	if err != nil {
		panic(err) // it has no value that JSON lacks
	}
	return C.CString(string(list))
}

// fisub_worked is Machine.Worked.
//
//export fisub_worked
func fisub_worked() C.int {
	if machine.Worked() {
		return 1
	}
	return 0
}

// fisub_emu lets this process run on the virtual GPU, as `fisub emu` tells it in the environment. The CUDA runtime
// calls it when it is loaded. Everything that is found is told on stderr at once, and its kind is added to the report.
// SIGINT and SIGTERM end the process with the place of the kernel that runs. The result is an error's text, or NULL.
//
//export fisub_emu
func fisub_emu() *C.char {
	report, err := os.OpenFile(os.Getenv("FISUB_EMU_REPORT"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return C.CString(err.Error())
	}
	var tools []string
	if list := os.Getenv("FISUB_EMU_SANITIZE"); list != "" {
		tools = strings.Split(list, ",")
	}
	words := map[vgpu.Event]string{vgpu.Hazard: "warning: ", vgpu.Faulted: "fault: "}
	var mu sync.Mutex
	hear := func(e vgpu.Event, text string) {
		mu.Lock()
		defer mu.Unlock()
		_, _ = report.Write([]byte{byte(e)})
		if text != "" {
			fmt.Fprintln(os.Stderr, "fisub: "+words[e]+text)
		}
	}
	folder, _ := os.Getwd()
	if err := vgpu.Attach(os.Getenv("FISUB_EMU_RUNTIME"), folder, tools, hear); err != nil {
		return C.CString(err.Error())
	}
	ends := make(chan os.Signal, 1)
	signal.Notify(ends, os.Interrupt, syscall.SIGTERM)
	go func() { vgpu.End(128 + int((<-ends).(syscall.Signal))) }()
	return nil
}

// fisub_free frees a text.
//
//export fisub_free
func fisub_free(text *C.char) { C.free(unsafe.Pointer(text)) }
