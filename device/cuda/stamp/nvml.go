//go:build cuda && linux && cgo

package stamp

/*
#cgo LDFLAGS: -ldl -lpthread
#include <stdlib.h>
#include "nvml.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"
	"unsafe"

	"fisub/device"
)

// ticks triggers the readings. A reading takes the driver well under a millisecond.
var ticks = func() (c <-chan time.Time, stop func()) {
	t := time.NewTicker(50 * time.Millisecond)
	return t.C, t.Stop
}

// utilizationPeriod is the driver's longest sampling period for the processes' use of the GPU.
const utilizationPeriod = time.Second

// A Meter reads one GPU.
type Meter struct {
	dev     C.nvml_device
	mig     bool
	missing map[string]string // reasons, by unreadable values
	mu      sync.Mutex        // guards missing
}

// failure returns an error for NVML's result ret, or nil for success.
func failure(doing string, ret C.int) error {
	if ret == C.NVML_SUCCESS {
		return nil
	}
	return fmt.Errorf("nvml: %s: %s", doing, C.GoString(C.fisub_nvml_error(ret)))
}

// load loads and initialises NVML.
func load() error {
	ret := C.fisub_nvml_load()
	if ret == C.NVML_LIBRARY_NOT_FOUND {
		return errors.New("nvml: no libnvidia-ml.so.1")
	}
	return failure("starting", ret)
}

// Open finds the GPU with the UUID ("GPU-..."), or the MIG device with the same digits after "MIG-". The error says
// why NVML or the GPU is not available.
func Open(uuid string) (*Meter, error) {
	if err := load(); err != nil {
		return nil, err
	}
	m := &Meter{missing: map[string]string{}}
	if err := m.find(uuid); err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

// Close shuts NVML down.
func (m *Meter) Close() { C.fisub_nvmlShutdown() }

// GPUs lists this machine's GPUs in the order of their PCI bus ids, with the processes computing on them.
func GPUs() ([]GPU, error) {
	if err := load(); err != nil {
		return nil, err
	}
	defer C.fisub_nvmlShutdown()
	var n C.uint
	if err := failure("counting GPUs", C.fisub_nvmlDeviceGetCount_v2(&n)); err != nil {
		return nil, err
	}
	gpus := make([]GPU, n)
	for i := range gpus {
		var dev C.nvml_device
		var uuid, name [C.NVML_NAME_SIZE]C.char
		ret := C.fisub_nvmlDeviceGetHandleByIndex_v2(C.uint(i), &dev)
		if ret == C.NVML_SUCCESS {
			ret = C.fisub_nvmlDeviceGetUUID(dev, &uuid[0], C.NVML_NAME_SIZE)
		}
		if ret == C.NVML_SUCCESS {
			ret = C.fisub_nvmlDeviceGetName(dev, &name[0], C.NVML_NAME_SIZE)
		}
		if err := failure(fmt.Sprintf("gpu %d", i), ret); err != nil {
			return nil, err
		}
		gpus[i] = GPU{UUID: C.GoString(&uuid[0]), Name: C.GoString(&name[0])}
		gpus[i].Processes, _ = running(dev) // may be empty in containers although there are some
	}
	return gpus, nil
}

// running lists the processes computing on the GPU.
func running(dev C.nvml_device) ([]device.GPUProcess, C.int) {
	held := make([]C.nvml_process, 8)
	n, ret := C.uint(len(held)), C.int(C.NVML_INSUFFICIENT_SIZE)
	for range 4 { // processes may start in between
		if ret = C.fisub_nvmlDeviceGetComputeRunningProcesses_v3(dev, &n, &held[0]); ret != C.NVML_INSUFFICIENT_SIZE {
			break
		}
		held = make([]C.nvml_process, 2*max(int(n), len(held)))
		n = C.uint(len(held))
	}
	if ret != C.NVML_SUCCESS {
		return nil, ret
	}
	var all []device.GPUProcess
	for _, h := range held[:n] {
		name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", h.pid))
		all = append(all, device.GPUProcess{PID: int(h.pid), Name: strings.TrimSpace(string(name)),
			MemoryBytes: max(0, int64(h.memory))}) // all ones, that is -1, if unknown
	}
	return all, ret
}

func (m *Meter) find(uuid string) error {
	lookUp := func(uuid string) C.int {
		name := C.CString(uuid)
		defer C.free(unsafe.Pointer(name))
		return C.fisub_nvmlDeviceGetHandleByUUID(name, &m.dev)
	}
	if ret := lookUp(uuid); ret != C.NVML_SUCCESS {
		if lookUp("MIG-"+strings.TrimPrefix(uuid, "GPU-")) != C.NVML_SUCCESS {
			return failure("looking for "+uuid, ret)
		}
		// Clocks and temperature belong to the whole GPU.
		slice := m.dev
		ret = C.fisub_nvmlDeviceGetDeviceHandleFromMigDeviceHandle(slice, &m.dev)
		if ret != C.NVML_SUCCESS {
			return failure("looking for the GPU of "+uuid, ret)
		}
		m.mig = true
	}
	var mode, pending C.uint
	ret := C.fisub_nvmlDeviceGetMigMode(m.dev, &mode, &pending)
	m.mig = m.mig || ret == C.NVML_SUCCESS && mode == C.NVML_MIG_ENABLE
	return nil
}

// known reports whether NVML succeeded, and records a failure as the reason for a missing value.
func (m *Meter) known(what string, ret C.int) bool {
	if ret == C.NVML_SUCCESS {
		return true
	}
	m.mu.Lock()
	m.missing[what] = C.GoString(C.fisub_nvml_error(ret))
	m.mu.Unlock()
	return false
}

func (m *Meter) reading() device.Reading {
	number := func(what string, get func(*C.uint) C.int) int {
		var n C.uint
		if !m.known(what, get(&n)) {
			return 0
		}
		return int(n)
	}
	clock := func(kind C.int) func(*C.uint) C.int {
		return func(n *C.uint) C.int { return C.fisub_nvmlDeviceGetClockInfo(m.dev, kind, n) }
	}
	return device.Reading{
		SMClockMHz:     number("SM clock", clock(C.NVML_CLOCK_SM)),
		MemoryClockMHz: number("memory clock", clock(C.NVML_CLOCK_MEM)),
		TemperatureC: number("temperature", func(n *C.uint) C.int {
			return C.fisub_nvmlDeviceGetTemperature(m.dev, C.NVML_TEMPERATURE_GPU, n)
		}),
		PowerW: float64(number("power", func(n *C.uint) C.int {
			return C.fisub_nvmlDeviceGetPowerUsage(m.dev, n)
		})) / 1000,
	}
}

func (m *Meter) clockReasons() uint64 {
	var bits C.ulonglong
	ret := C.fisub_nvmlDeviceGetCurrentClocksEventReasons(m.dev, &bits)
	if ret == C.NVML_FUNCTION_NOT_FOUND { // the name in drivers before 535
		ret = C.fisub_nvmlDeviceGetCurrentClocksThrottleReasons(m.dev, &bits)
	}
	m.known("throttle reasons", ret)
	return uint64(bits)
}

func (m *Meter) eccErrors() int64 {
	var n C.ulonglong
	m.known("ECC errors", C.fisub_nvmlDeviceGetTotalEccErrors(m.dev, C.NVML_UNCORRECTED, C.NVML_VOLATILE_ECC, &n))
	return int64(n)
}

// processes lists all processes that hold memory on the GPU, with their use of it since the given time. It returns nil
// if there are at most own, the number of the caller's processes.
func (m *Meter) processes(since time.Time, own int) []device.GPUProcess {
	all, ret := running(m.dev)
	m.known("processes", ret)
	if len(all) <= own {
		return nil // only count: their PIDs may differ
	}
	var n C.uint
	var samples []C.nvml_utilization
	from := C.ulonglong(since.UnixMicro())
	ret = C.fisub_nvmlDeviceGetProcessUtilization(m.dev, nil, &n, from)
	if ret == C.NVML_INSUFFICIENT_SIZE && n > 0 {
		samples = make([]C.nvml_utilization, n)
		ret = C.fisub_nvmlDeviceGetProcessUtilization(m.dev, &samples[0], &n, from)
		samples = samples[:min(int(n), len(samples))]
	}
	if ret == C.NVML_NOT_FOUND || ret == C.NVML_INSUFFICIENT_SIZE {
		ret = C.NVML_SUCCESS // no sample: nobody was busy
	}
	known := m.known("other processes' use of the GPU", ret)
	busy := map[int]int{}
	for _, s := range samples {
		busy[int(s.pid)] = max(busy[int(s.pid)], int(s.sm))
	}
	for i := range all {
		all[i].SMPercent = -1
		if known {
			all[i].SMPercent = busy[all[i].PID]
		}
	}
	return all
}

// Begin takes a reading before the timing, and then one every 50 ms in the background, the first immediately. own are
// the PIDs of the timed processes that hold GPU memory; all others are listed in the stamp. end stops the readings and
// returns the stamp and reasons to doubt the timing. Call it once, before the next Begin.
func (m *Meter) Begin(own []int) (end func() (*device.Stamp, []string)) {
	m.missing = map[string]string{}
	begun := time.Now()
	before := m.eccErrors()
	s := &device.Stamp{MIG: m.mig, Before: m.reading()}
	var readings []device.Reading
	var bits uint64 // of all clock reasons
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick, stopTicks := ticks()
		defer stopTicks()
		for {
			readings = append(readings, m.reading())
			bits |= m.clockReasons()
			select {
			case <-stop:
				return
			case <-tick:
			}
		}
	}()
	return func() (*device.Stamp, []string) {
		close(stop)
		<-stopped
		s.After = m.reading()
		s.During = sumUp(readings)
		s.ThrottleReasons, s.ClocksLocked = throttles(bits), bits&C.NVML_CLOCKS_SET_BY_USER != 0
		s.OtherProcesses = without(m.processes(begun.Add(-utilizationPeriod), len(own)), own)
		var mode, pending C.uint
		m.known("ECC mode", C.fisub_nvmlDeviceGetEccMode(m.dev, &mode, &pending))
		s.ECC = mode == C.NVML_FEATURE_ENABLED
		s.ECCErrors = m.eccErrors()
		s.Note = noteOf(m.missing)
		return s, disturbed(s, s.ECCErrors-before)
	}
}
