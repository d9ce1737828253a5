package activity

import (
	"encoding/binary"
	"fmt"

	"fisub/device"
)

// CUPTI's numbers for the kinds of records read by Decode.
const (
	kindMemcpy  = 1
	kindMemset  = 2
	kindDriver  = 4
	kindRuntime = 5
	kindKernel  = 10 // concurrent kernel
)

// MaxNames is the maximum number of kernel names.
const MaxNames = 1 << 14

// maxName is the maximum length of a name in bytes.
const maxName = 1 << 16

// hostFunctions are the calls that queue a function of the host, by kind of record and CUPTI's number of the call,
// which never changes.
var hostFunctions = map[[2]uint32]string{
	{kindRuntime, 197}: "cudaStreamAddCallback", {kindRuntime, 248}: "cudaStreamAddCallback",
	{kindRuntime, 284}: "cudaLaunchHostFunc", {kindRuntime, 285}: "cudaLaunchHostFunc",
	{kindDriver, 346}: "cuStreamAddCallback", {kindDriver, 437}: "cuStreamAddCallback",
	{kindDriver, 527}: "cuLaunchHostFunc", {kindDriver, 528}: "cuLaunchHostFunc",
}

// A Name is a kernel's name, mangled and (if possible) demangled.
type Name struct{ Symbol, Plain string }

// Decode reads concatenated records in CUPTI's layout, truncated after the last field used (36 bytes of an API call,
// 48 of a copy or memset, 104 of a kernel). A kernel's record is followed by the index of its name, in 4 bytes. All
// versions since CUDA 12.0 agree within these lengths; see device/cuda/cupti/records.h. The data come from another
// process: invalid data are an Unavailable.
func Decode(data []byte, names []Name) ([]Launch, []Activity, error) {
	if len(names) > MaxNames {
		return nil, nil, Unavailable(fmt.Sprintf("%d names of kernels", len(names)))
	}
	for _, n := range names {
		if max(len(n.Symbol), len(n.Plain)) > maxName {
			return nil, nil, Unavailable(fmt.Sprintf("a kernel's name has %d bytes", max(len(n.Symbol), len(n.Plain))))
		}
	}
	var launches []Launch
	var activities []Activity
	le := binary.LittleEndian
	for at := 0; at < len(data); {
		r := data[at:]
		size, kind := 0, -1
		if len(r) >= 4 {
			kind = int(le.Uint32(r))
		}
		switch kind {
		case kindDriver, kindRuntime:
			size = 36
		case kindMemcpy, kindMemset:
			size = 48
		case kindKernel:
			size = 108
		}
		if size == 0 || len(r) < size {
			return nil, nil, Unavailable(fmt.Sprintf("invalid record at byte %d of %d", at, len(data)))
		}
		at += size
		switch kind {
		case kindDriver, kindRuntime:
			launches = append(launches, Launch{Start: le.Uint64(r[8:]), Thread: le.Uint32(r[28:]),
				Correlation: le.Uint32(r[32:]), Host: hostFunctions[[2]uint32{uint32(kind), le.Uint32(r[4:])}]})
			continue
		case kindMemcpy:
			activities = append(activities, Activity{Activity: device.Activity{Kind: "memcpy", Bytes: int64(le.Uint64(r[8:]))},
				CopyKind: int(r[4])})
		case kindMemset:
			activities = append(activities, Activity{Activity: device.Activity{Kind: "memset", Bytes: int64(le.Uint64(r[8:]))},
				Value: int(le.Uint32(r[4:]))})
		case kindKernel:
			name := le.Uint32(r[104:])
			if name >= uint32(len(names)) {
				return nil, nil, Unavailable(fmt.Sprintf("a kernel has name index %d of %d", name, len(names)))
			}
			a := Activity{Symbol: names[name].Symbol, Activity: device.Activity{Kind: "kernel", Name: names[name].Plain,
				Registers: int(le.Uint16(r[6:]))}}
			number := func(at int) int { return int(int32(le.Uint32(r[at:]))) }
			for i := range 3 {
				a.Grid[i], a.Block[i] = number(52+4*i), number(64+4*i)
			}
			a.StaticSharedBytes, a.DynamicSharedBytes, a.LocalBytes = number(76), number(80), int(le.Uint32(r[84:]))
			a.Correlation = le.Uint32(r[92:])
			activities = append(activities, a)
		}
		a := &activities[len(activities)-1]
		a.Start, a.End = le.Uint64(r[16:]), le.Uint64(r[24:])
		if kind != kindKernel {
			a.Correlation = le.Uint32(r[44:])
		}
	}
	return launches, activities, nil
}
