//go:build linux && cgo

package vgpu

import (
	"cmp"
	"fmt"
	"math"
	"sync"

	"fisub/device/nvcc"
	"fisub/device/sass"
)

// Limits of a multiprocessor and of a launch.
const (
	processors        = 148 // of the device
	processorThreads  = 2048
	processorBlocks   = 32
	processorShared   = 228 << 10
	processorRegs     = 64 << 10 // also the limit for a block
	blockShared       = 227 << 10
	reservedShared    = 1 << 10   // bytes of a block's shared memory that the system reserves
	maxLocal          = 512 << 10 // bytes per thread
	portableCluster   = 8         // blocks per cluster that every GPU supports
	maxCluster        = 16
	maxThreads        = 1024 // per block
	partitions        = 4    // of a multiprocessor, each with its own registers
	registerUnit      = 256  // a warp's registers are rounded up to this
	cudaTooManyBlocks = 720  // CUDA's error numbers
	cudaOutOfResource = 701
	cudaClusterSize   = 912
)

func roundUp(n, unit int) int { return (n + unit - 1) / unit * unit }

// usage returns what ptxas assigned to each thread of k, or false without machine code for the arch of the PTX.
func (k *Kernel) usage() (usage, bool) {
	u, ok := k.mod.usage[k.src.Name]
	return u, ok
}

// MachineCode compares the machine code for the arch of k's PTX with that PTX, by source line. The result is nil
// without such code or without line information in it. The first call for a module reads its machine code, which must
// still be loaded.
func (k *Kernel) MachineCode() ([]sass.Line, error) {
	if k.mod.code == nil {
		return nil, nil
	}
	if k.machineCode == nil { // launches ask again and again
		k.machineCode = sync.OnceValues(k.compareCode)
	}
	return k.machineCode()
}

func (k *Kernel) compareCode() ([]sass.Line, error) {
	all, err := k.mod.code()
	if err != nil {
		return nil, err
	}
	lines := sass.Compare(all, k.mod.ptx, k.src.Name)
	if k.mod.Rename != nil {
		for i := range lines {
			lines[i].File = k.mod.Rename(lines[i].File)
		}
	}
	return lines, nil
}

// warpRegisters returns the number of registers of a warp of k, or 0 if it is unknown.
func (k *Kernel) warpRegisters() int {
	u, _ := k.usage()
	return roundUp(u.registers*32, registerUnit)
}

// MaxThreads returns the size of the largest block that both the launch bounds and the registers of k allow.
func (k *Kernel) MaxThreads() int {
	return min(k.bound(), k.registerBound())
}

// registerBound returns the size of the largest block that the registers allow.
func (k *Kernel) registerBound() int {
	u, _ := k.usage()
	return nvcc.LargestBlock(u.registers)
}

// bound returns the size of the largest block that the launch bounds allow.
func (k *Kernel) bound() int { return cmp.Or(k.src.MaxThreads, maxThreads) }

// local returns the bytes of local memory per thread of k.
func (k *Kernel) local() int {
	if u, ok := k.usage(); ok {
		return u.local
	}
	return k.LocalBytes()
}

// blocks returns how many blocks with the given threads and bytes of dynamic shared memory fit on a multiprocessor.
func (k *Kernel) blocks(threads, shared int) int {
	if threads <= 0 || threads > k.registerBound() || k.StaticShared()+shared > blockShared {
		return 0
	}
	warps := roundUp(threads, 32) / 32
	n := min(processorThreads/32/warps, processorBlocks, processorShared/(reservedShared+k.StaticShared()+shared))
	if r := k.warpRegisters(); r > 0 {
		n = min(n, processorRegs/partitions/r*partitions/warps)
	}
	return n
}

// resident returns how many blocks of a launch the device holds at once, at least one per multiprocessor.
func (k *Kernel) resident(l Launch) int {
	return processors * max(1, k.blocks(l.Block[0]*l.Block[1]*l.Block[2], l.Shared))
}

// refusal returns why a GPU refuses a launch and CUDA's error number, or "" if it does not.
func (k *Kernel) refusal(l Launch) (why string, code int) {
	if !within(l.Grid, [3]int{math.MaxInt32, 65535, 65535}) {
		return fmt.Sprintf("grid (%d,%d,%d) is out of range", l.Grid[0], l.Grid[1], l.Grid[2]), cudaInvalidValue
	}
	if !within(l.Block, [3]int{1024, 1024, 64}) || l.Block[0]*l.Block[1]*l.Block[2] > 1024 {
		return fmt.Sprintf("block (%d,%d,%d) is out of range", l.Block[0], l.Block[1], l.Block[2]), cudaInvalidValue
	}
	threads, cluster := l.Block[0]*l.Block[1]*l.Block[2], l.Cluster[0]*l.Cluster[1]*l.Cluster[2]
	for i := range 3 {
		if l.Grid[i]%l.Cluster[i] != 0 {
			return fmt.Sprintf("grid %v is not a multiple of the cluster %v", l.Grid, l.Cluster), cudaInvalidValue
		}
	}
	u, _ := k.usage()
	switch {
	case cluster > maxCluster:
		return fmt.Sprintf("a cluster of %d blocks, more than a GPU's %d", cluster, maxCluster), cudaClusterSize
	case cluster > portableCluster && !l.anyCluster:
		return fmt.Sprintf("a cluster of %d blocks; more than %d need cudaFuncSetAttribute(..., "+
				"cudaFuncAttributeNonPortableClusterSizeAllowed, 1)", cluster, portableCluster),
			cudaClusterSize
	case threads > k.bound():
		return fmt.Sprintf("a block of %d threads is larger than its launch bounds of %d", threads,
			k.bound()), cudaInvalidValue
	case threads > k.registerBound():
		return fmt.Sprintf("too many resources requested for launch: a block of %d threads with %d registers each; it can "+
			"have at most %d threads", threads, u.registers, k.registerBound()), cudaOutOfResource
	case k.local() > maxLocal:
		return fmt.Sprintf("%d bytes of local memory for each thread, more than a GPU's %d", k.local(),
			maxLocal), cudaInvalidValue
	case k.StaticShared()+l.Shared > blockShared:
		return fmt.Sprintf("%d bytes of shared memory, more than a block can have", k.StaticShared()+l.Shared),
			cudaInvalidValue
	case l.Cooperative && l.blocks() > k.resident(l):
		return fmt.Sprintf("a cooperative launch of %d blocks, of which only %d fit on the GPU at once", l.blocks(),
			k.resident(l)), cudaTooManyBlocks
	}
	return "", 0
}

// within reports whether each size is at least 1 and at most its limit.
func within(sizes, most [3]int) bool {
	for i, n := range sizes {
		if n < 1 || n > most[i] {
			return false
		}
	}
	return true
}
