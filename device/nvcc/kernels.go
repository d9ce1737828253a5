package nvcc

import (
	"context"
	"debug/elf"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"fisub/device"
	"fisub/internal/plain"
)

// A Resources holds the assembler's report on one __global__ function.
type Resources struct {
	Name        string `json:"name"`   // without parameters; demangled if c++filt is available
	Symbol      string `json:"symbol"` // mangled
	File        string `json:"file"`   // the source file
	Registers   int    `json:"registers"`
	SpillStores int    `json:"spill_stores"` // bytes per thread
	SpillLoads  int    `json:"spill_loads"`  // bytes per thread
	Stack       int    `json:"stack"`        // bytes per thread
	Shared      int    `json:"shared"`       // bytes per block, static
	Constant    int    `json:"constant"`     // bytes, parameters included
	Barriers    int    `json:"barriers"`
	MaxThreads  int    `json:"max_threads,omitempty"` // per block, by launch bounds; 0 without them
	MinBlocks   int    `json:"min_blocks,omitempty"`  // per multiprocessor, by launch bounds; 0 without them
}

// Text describes the kernel in one line.
func (k Resources) Text() string {
	text := fmt.Sprintf("%d registers", k.Registers)
	if k.SpillStores+k.SpillLoads > 0 {
		text += fmt.Sprintf(", %d + %d bytes of spills", k.SpillStores, k.SpillLoads)
	}
	if k.Stack > 0 {
		text += fmt.Sprintf(", %d bytes of local memory", k.Stack)
	}
	text += fmt.Sprintf(", %d bytes shared, %d constant", k.Shared, k.Constant)
	if k.MaxThreads > 0 {
		text += fmt.Sprintf(", at most %d threads per block", k.MaxThreads)
	}
	return text
}

// LargestBlock returns the largest launchable block, in threads with the given number of registers, for sm_50 and
// later. A GPU assigns registers to warps in units of 256, and checks as if the block's warps were spread evenly over
// the multiprocessor's four partitions.
func LargestBlock(registers int) int {
	const most, unit, partitions = 64 << 10, 256, 4
	perWarp := (registers*32 + unit - 1) / unit * unit
	if perWarp == 0 {
		return 1024
	}
	return min(1024, most/perWarp/partitions*partitions*32)
}

const (
	maxKernels = 4096
	maxPTX     = 64 << 20 // larger files are skipped
)

var (
	ptxasEntry = regexp.MustCompile(`^ptxas info\s*: Compiling entry function '([^']+)'`)
	ptxasStack = regexp.MustCompile(`^\s+(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads`)
	ptxasUsed  = regexp.MustCompile(`^ptxas info\s*: Used (\d+) registers`)
	ptxasParts = regexp.MustCompile(`(?:used (\d+) barriers|(\d+)(?:\+\d+)? bytes (smem|cmem\[\d+\]))`)
)

// takeReport parses the output of ptxas -v in a compiler's log, and returns the rest of the log.
func takeReport(log, file string) (kernels []Resources, rest string) {
	var kept strings.Builder
	var k *Resources
	for line := range strings.Lines(log) {
		if m := ptxasEntry.FindStringSubmatch(line); m != nil {
			k = nil
			if len(kernels) < maxKernels {
				kernels = append(kernels, Resources{Name: m[1], Symbol: m[1], File: file})
				k = &kernels[len(kernels)-1]
			}
			continue
		}
		if m := ptxasStack.FindStringSubmatch(line); m != nil {
			if k != nil && k.Registers == 0 {
				k.Stack, k.SpillStores, k.SpillLoads = atoi(m[1]), atoi(m[2]), atoi(m[3])
			}
			continue
		}
		if !strings.HasPrefix(line, "ptxas info") {
			kept.WriteString(line)
			continue
		}
		m := ptxasUsed.FindStringSubmatch(line)
		if m == nil || k == nil {
			continue
		}
		k.Registers = atoi(m[1])
		for _, part := range ptxasParts.FindAllStringSubmatch(line, -1) {
			switch {
			case part[1] != "":
				k.Barriers = atoi(part[1])
			case part[3] == "smem":
				k.Shared = atoi(part[2])
			default:
				k.Constant += atoi(part[2])
			}
		}
	}
	return kernels, kept.String()
}

// complete adds the facts found in the files that nvcc kept in dir.
func complete(kernels []Resources, dir string) {
	bySymbol := map[string]*Resources{}
	for i := range kernels {
		bySymbol[kernels[i].Symbol] = &kernels[i]
	}
	ptx, _ := filepath.Glob(filepath.Join(dir, "*.ptx"))
	for _, name := range ptx {
		if text, err := plain.ReadFile(name, maxPTX); err == nil {
			launchBounds(string(text), bySymbol)
		}
	}
	cubins, _ := filepath.Glob(filepath.Join(dir, "*.cubin"))
	for _, name := range cubins {
		f, err := elf.Open(name)
		if err != nil {
			continue
		}
		for _, s := range f.Sections {
			symbol, ok := strings.CutPrefix(s.Name, ".nv.constant0.")
			if k := bySymbol[symbol]; ok && k != nil {
				k.Constant = max(k.Constant, int(s.Size))
			}
		}
		f.Close()
	}
}

var (
	ptxEntry = regexp.MustCompile(`\.entry\s+([A-Za-z0-9_$]+)`)
	ptxBound = regexp.MustCompile(`^\.(maxntid|reqntid|minnctapersm)\s+([0-9, ]+)`)
)

func launchBounds(text string, kernels map[string]*Resources) {
	var k *Resources // whose head is being read
	for line := range strings.Lines(text) {
		if m := ptxEntry.FindStringSubmatch(line); m != nil {
			k = kernels[m[1]]
		}
		if strings.HasPrefix(line, "{") {
			k = nil
		}
		m := ptxBound.FindStringSubmatch(strings.TrimSpace(line))
		if k == nil || m == nil {
			continue
		}
		if n := 1; m[1] == "minnctapersm" {
			k.MinBlocks = atoi(strings.TrimSpace(m[2]))
		} else {
			for extent := range strings.SplitSeq(m[2], ",") {
				n *= max(1, min(1024, atoi(strings.TrimSpace(extent))))
			}
			k.MaxThreads = n
		}
	}
}

// Demangle returns C++ names without parameters, or symbols unchanged if c++filt is missing.
func Demangle(symbols []string) []string {
	tool, err := exec.LookPath("c++filt")
	if err != nil || len(symbols) == 0 {
		return symbols
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	cmd := device.Command(ctx, tool, "--no-params")
	cmd.Stdin = strings.NewReader(strings.Join(symbols, "\n") + "\n")
	out, err := cmd.Output()
	names := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	if err != nil || len(names) != len(symbols) {
		return symbols
	}
	return names
}

func demangle(kernels []Resources) {
	symbols := make([]string, len(kernels))
	for i, k := range kernels {
		symbols[i] = k.Symbol
	}
	for i, name := range Demangle(symbols) {
		kernels[i].Name = name
	}
}
