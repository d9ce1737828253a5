package event

import "fmt"

// A Device describes a GPU or the virtual GPU.
type Device struct {
	Kind            string `json:"kind"`             // "cuda", "emu"
	Name            string `json:"name"`             // "NVIDIA H200"; the CPU's name for the virtual GPU
	Arch            string `json:"arch,omitempty"`   // "sm_90"; "" for the virtual GPU
	Ordinal         int    `json:"ordinal"`          // index among the devices of its kind
	Driver          string `json:"driver,omitempty"` // driver version; "" for the virtual GPU
	CUDA            string `json:"cuda,omitempty"`   // version of the runtime linked with the kernel, "13.0"
	Emulated        bool   `json:"emulated"`
	Toolchain       string `json:"toolchain"` // compiler name and version, as it reports them
	UUID            string `json:"uuid,omitempty"`
	L2Bytes         int64  `json:"l2_bytes,omitempty"`
	MemoryBytes     int64  `json:"memory_bytes,omitempty"`
	Multiprocessors int    `json:"multiprocessors,omitempty"`
	Bandwidth       int64  `json:"bandwidth,omitempty"` // of the memory, in bytes a second, from its clock; 0: unknown

	Libs map[string]string `json:"libs,omitempty"` // versions of a solution's libraries: torch, triton, tilelang, cuda
}

// Hardware returns the device's name in official traces.
func (d *Device) Hardware() string {
	if d.Emulated {
		return "emulator on " + d.Name
	}
	return d.Name
}

// An Activity is one kernel, copy or memset on the GPU. Sizes are in bytes.
type Activity struct {
	Kind               string `json:"kind"`           // "kernel", "memcpy", "memset"
	Name               string `json:"name,omitempty"` // of a kernel, demangled if possible
	Grid               [3]int `json:"grid,omitzero"`
	Block              [3]int `json:"block,omitzero"`
	Registers          int    `json:"registers,omitempty"` // per thread
	StaticSharedBytes  int    `json:"static_shared_bytes,omitempty"`
	DynamicSharedBytes int    `json:"dynamic_shared_bytes,omitempty"`
	LocalBytes         int    `json:"local_bytes,omitempty"` // per thread
	Bytes              int64  `json:"bytes,omitempty"`       // copied or set

	MedianNS float64 `json:"median_ns,omitempty"` // time of this activity alone, over the calls of the first trial
}

// String returns "kernel NAME" or the like.
func (a Activity) String() string {
	if a.Kind == "kernel" {
		return "kernel " + a.Name
	}
	return fmt.Sprintf("%s of %d bytes", a.Kind, a.Bytes)
}

// A Stamp is the state of the GPU while a workload was timed, from NVML. Unavailable values are zero, and Note says so.
type Stamp struct {
	Before          Reading      `json:"before"` // after the warm-up calls
	After           Reading      `json:"after"`
	During          During       `json:"during"`
	ThrottleReasons []string     `json:"throttle_reasons,omitempty"` // all reasons seen
	OtherProcesses  []GPUProcess `json:"other_processes,omitempty"`
	ECC             bool         `json:"ecc"`
	ECCErrors       int64        `json:"ecc_errors"`    // uncorrected, since the driver was loaded
	ClocksLocked    bool         `json:"clocks_locked"` // the user's clock settings limited the clocks
	MIG             bool         `json:"mig"`
	Note            string       `json:"note,omitempty"`
}

// A Reading is the state at one moment.
type Reading struct {
	SMClockMHz     int     `json:"sm_clock_mhz"`
	MemoryClockMHz int     `json:"memory_clock_mhz"`
	TemperatureC   int     `json:"temperature_c"`
	PowerW         float64 `json:"power_w"`
}

// During summarizes N readings. It is zero if N is 0.
type During struct {
	N      int     `json:"n"`
	Min    Reading `json:"min"` // each field separately, as for Median and Max
	Median Reading `json:"median"`
	Max    Reading `json:"max"`
}

// A GPUProcess is a process with memory on the GPU.
type GPUProcess struct {
	PID         int    `json:"pid"` // as the driver reports it; may differ in a container
	Name        string `json:"name,omitempty"`
	MemoryBytes int64  `json:"memory_bytes"`
	SMPercent   int    `json:"sm_percent"` // share of the multiprocessors' time; -1: unknown
}
