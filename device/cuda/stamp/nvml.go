//go:build cuda && linux && cgo

package stamp

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"fisub/device"
	"fisub/internal/event"
)

// interval is the time between two readings. One takes the driver well under a millisecond.
const interval = 50 * time.Millisecond

// userClocks is the clocks event reason for clocks that the user has set.
const userClocks = nvml.ClocksEventReasonApplicationsClocksSetting

// utilizationPeriod is the longest time that the driver takes for a sample of the processes' use of the GPU.
const utilizationPeriod = time.Second

// A Meter reads one GPU.
type Meter struct {
	lib     nvml.Interface
	dev     nvml.Device
	mig     bool
	reasons string            // the function that tells them, which has another name in drivers before 535
	missing map[string]string // what could not be read, and why
	mu      sync.Mutex        // guards missing
}

// load starts NVML.
func load() (nvml.Interface, error) {
	var lib nvml.Interface
	ret := nvml.ERROR_LIBRARY_NOT_FOUND
	// Containers often have the driver in a folder that the loader does not search.
	for _, path := range []string{"libnvidia-ml.so.1", "/usr/local/nvidia/lib64/libnvidia-ml.so.1", "/usr/lib/wsl/lib/libnvidia-ml.so.1"} {
		lib = nvml.New(nvml.WithLibraryPath(path))
		if ret = lib.Init(); ret != nvml.ERROR_LIBRARY_NOT_FOUND {
			break
		}
	}
	if ret == nvml.ERROR_LIBRARY_NOT_FOUND {
		return nil, fmt.Errorf("nvml: no libnvidia-ml.so.1")
	}
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("nvml: starting: %s", nvml.ErrorString(ret))
	}
	return lib, nil
}

// Open finds the GPU with that UUID ("GPU-..."; a MIG device's is looked for by the same digits). The error says why there
// is no NVML, or none for it.
func Open(uuid string) (*Meter, error) {
	lib, err := load()
	if err != nil {
		return nil, err
	}
	m := &Meter{lib: lib, missing: map[string]string{}}
	if err := m.find(uuid); err != nil {
		lib.Shutdown()
		return nil, err
	}
	m.reasons = "nvmlDeviceGetCurrentClocksEventReasons"
	if !m.has(m.reasons) {
		m.reasons = "nvmlDeviceGetCurrentClocksThrottleReasons"
	}
	return m, nil
}

// GPUs lists the GPUs of this machine in the order of their PCI bus ids, each with the processes that compute on it.
func GPUs() ([]GPU, error) {
	lib, err := load()
	if err != nil {
		return nil, err
	}
	defer lib.Shutdown()
	n, ret := lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("nvml: counting GPUs: %s", nvml.ErrorString(ret))
	}
	gpus := make([]GPU, n)
	for i := range gpus {
		dev, ret := lib.DeviceGetHandleByIndex(i)
		g := &gpus[i]
		if ret == nvml.SUCCESS {
			g.UUID, ret = dev.GetUUID()
		}
		if ret == nvml.SUCCESS {
			g.Name, ret = dev.GetName()
		}
		if ret != nvml.SUCCESS {
			return nil, fmt.Errorf("nvml: gpu %d: %s", i, nvml.ErrorString(ret))
		}
		held, ret := dev.GetComputeRunningProcesses()
		if ret != nvml.SUCCESS {
			continue // as in some containers; that is no sign of one
		}
		for _, h := range held {
			name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", h.Pid))
			g.Processes = append(g.Processes, event.GPUProcess{PID: int(h.Pid), Name: strings.TrimSpace(string(name)), MemoryBytes: max(0, int64(h.UsedGpuMemory))})
		}
	}
	return gpus, nil
}

func (m *Meter) find(uuid string) error {
	dev, ret := m.lib.DeviceGetHandleByUUID(uuid)
	if ret != nvml.SUCCESS {
		slice, ret2 := m.lib.DeviceGetHandleByUUID("MIG-" + strings.TrimPrefix(uuid, "GPU-"))
		if ret2 != nvml.SUCCESS {
			return fmt.Errorf("nvml: looking for %s: %s", uuid, nvml.ErrorString(ret))
		}
		// Clocks and temperature are of the whole GPU.
		if dev, ret = slice.GetDeviceHandleFromMigDeviceHandle(); ret != nvml.SUCCESS {
			return fmt.Errorf("nvml: looking for the GPU of %s: %s", uuid, nvml.ErrorString(ret))
		}
		m.mig = true
	}
	m.dev = dev
	if m.has("nvmlDeviceGetMigMode") {
		mode, _, ret := dev.GetMigMode()
		m.mig = m.mig || ret == nvml.SUCCESS && mode == nvml.DEVICE_MIG_ENABLE
	}
	return nil
}

// Close gives NVML back.
func (m *Meter) Close() { m.lib.Shutdown() }

// has tells whether this driver's NVML has a function: to call one that it lacks ends the process.
func (m *Meter) has(name string) bool { return m.lib.Extensions().LookupSymbol(name) == nil }

// read calls f, which calls the function of that name, and remembers why it gave nothing.
func (m *Meter) read(function, what string, f func() nvml.Return) bool {
	ret := nvml.ERROR_FUNCTION_NOT_FOUND
	if m.has(function) {
		if ret = f(); ret == nvml.SUCCESS {
			return true
		}
	}
	m.mu.Lock()
	m.missing[what] = nvml.ErrorString(ret)
	m.mu.Unlock()
	return false
}

func (m *Meter) reading() event.Reading {
	number := func(function, what string, f func() (uint32, nvml.Return)) int {
		var n uint32
		if !m.read(function, what, func() (ret nvml.Return) { n, ret = f(); return ret }) {
			return 0
		}
		return int(n)
	}
	clock := func(kind nvml.ClockType) func() (uint32, nvml.Return) {
		return func() (uint32, nvml.Return) { return m.dev.GetClockInfo(kind) }
	}
	return event.Reading{
		SMClockMHz:     number("nvmlDeviceGetClockInfo", "SM clock", clock(nvml.CLOCK_SM)),
		MemoryClockMHz: number("nvmlDeviceGetClockInfo", "memory clock", clock(nvml.CLOCK_MEM)),
		TemperatureC: number("nvmlDeviceGetTemperature", "temperature", func() (uint32, nvml.Return) {
			return m.dev.GetTemperature(nvml.TEMPERATURE_GPU)
		}),
		PowerW: float64(number("nvmlDeviceGetPowerUsage", "power", m.dev.GetPowerUsage)) / 1000,
	}
}

func (m *Meter) clockReasons() (bits uint64) {
	m.read(m.reasons, "throttle reasons", func() (ret nvml.Return) {
		if strings.HasSuffix(m.reasons, "EventReasons") {
			bits, ret = m.dev.GetCurrentClocksEventReasons()
		} else {
			bits, ret = m.dev.GetCurrentClocksThrottleReasons()
		}
		return ret
	})
	return bits
}

func (m *Meter) eccErrors() (n int64) {
	m.read("nvmlDeviceGetTotalEccErrors", "ECC errors", func() nvml.Return {
		count, ret := m.dev.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC)
		n = int64(count)
		return ret
	})
	return n
}

// processes lists who holds memory on the GPU beside own processes that are known to, and how busy each has been since the
// time; the list has the own ones too. It is empty where there is nobody else.
func (m *Meter) processes(since time.Time, own int) (all []event.GPUProcess) {
	var held []nvml.ProcessInfo
	m.read("nvmlDeviceGetComputeRunningProcesses", "processes", func() (ret nvml.Return) {
		held, ret = m.dev.GetComputeRunningProcesses()
		return ret
	})
	if len(held) <= own {
		return nil // under whatever numbers
	}
	busy, known := map[uint32]int{}, false
	m.read("nvmlDeviceGetProcessUtilization", "other processes' use of the GPU", func() nvml.Return {
		samples, ret := m.dev.GetProcessUtilization(uint64(since.UnixMicro()))
		// Without a sample nobody was busy.
		known = ret == nvml.SUCCESS || ret == nvml.ERROR_NOT_FOUND || ret == nvml.ERROR_INSUFFICIENT_SIZE
		for _, s := range samples {
			busy[s.Pid] = max(busy[s.Pid], int(s.SmUtil))
		}
		if known {
			return nvml.SUCCESS
		}
		return ret
	})
	for _, h := range held {
		p := event.GPUProcess{PID: int(h.Pid), MemoryBytes: int64(h.UsedGpuMemory), SMPercent: -1}
		if p.MemoryBytes < 0 { // NVML's word for unknown is all ones
			p.MemoryBytes = 0
		}
		if known {
			p.SMPercent = busy[h.Pid]
		}
		name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", p.PID))
		p.Name = strings.TrimSpace(string(name))
		all = append(all, p)
	}
	return all
}

// A watch reads the GPU in a goroutine of its own.
type watch struct {
	meter    *Meter
	stamp    *device.Stamp
	begun    time.Time
	own      []int
	stop     chan struct{}
	stopped  chan struct{}
	readings []event.Reading
	bits     uint64
}

// Begin takes the reading before the timing and then one every 50 ms, the first at once. own are the numbers of the processes
// that hold memory on the GPU for what is timed: all others are told in the stamp. end ends the readings and gives the stamp,
// and the reasons to doubt what was timed; it is called once, and before the next Begin.
func (m *Meter) Begin(own []int) (end func() (*device.Stamp, []string)) {
	m.missing = map[string]string{}
	w := &watch{meter: m, stamp: &device.Stamp{MIG: m.mig}, begun: time.Now(), own: own, stop: make(chan struct{}), stopped: make(chan struct{})}
	w.stamp.ECCErrors = m.eccErrors()
	w.stamp.Before = m.reading()
	go func() {
		defer close(w.stopped)
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for {
			w.readings = append(w.readings, m.reading())
			w.bits |= m.clockReasons()
			select {
			case <-w.stop:
				return
			case <-tick.C:
			}
		}
	}()
	return w.end
}

func (w *watch) end() (*device.Stamp, []string) {
	m, s := w.meter, w.stamp
	close(w.stop)
	<-w.stopped
	s.After = m.reading()
	s.During = sumUp(w.readings)
	s.ThrottleReasons, s.ClocksLocked = throttles(w.bits), w.bits&userClocks != 0
	s.OtherProcesses = without(m.processes(w.begun.Add(-utilizationPeriod), len(w.own)), w.own)
	m.read("nvmlDeviceGetEccMode", "ECC mode", func() nvml.Return {
		mode, _, ret := m.dev.GetEccMode()
		s.ECC = mode == nvml.FEATURE_ENABLED
		return ret
	})
	before := s.ECCErrors
	s.ECCErrors = m.eccErrors()
	s.Note = noteOf(m.missing)
	return s, disturbed(s, s.ECCErrors-before)
}
