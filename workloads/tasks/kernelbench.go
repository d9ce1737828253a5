package tasks

import (
	"path/filepath"
	"slices"
	"strings"

	"fisub/internal/trace"
)

// Rules of KernelBench's eval.py for float32: the tolerances of torch.allclose, and the seeds of its five trials, which
// torch draws from the seed 42.
const kernelBenchTolerance = 1e-4

var kernelBenchSeeds = []int{734796314, 576165995, 2197670066, 839703249, 2584932063}

// readKernelBench reads the problem among the Python files of a folder, and finds its answer. If no file is a problem,
// both results are nil.
func readKernelBench(dir string) (*Task, error) {
	names, _ := filepath.Glob(filepath.Join(dir, "*.py"))
	var problems, answers []string
	var text string
	for _, name := range names {
		s, _ := readPython(name)
		switch {
		case defines(s, "ModelNew"):
			answers = append(answers, name)
		case defines(s, "Model") && defines(s, "get_inputs") && defines(s, "get_init_inputs"):
			problems, text = append(problems, name), s
		}
	}
	switch {
	case len(problems) == 0:
		return nil, nil
	case len(problems) > 1:
		return nil, fail(dir, 0, "keep one problem and its answer in a folder", "several problems of KernelBench: %s",
			strings.Join(problems, ", "))
	}
	answer := filepath.Join(dir, "answer.py")
	if len(answers) > 1 && !slices.Contains(answers, answer) {
		return nil, fail(dir, 0, "name the one to run answer.py", "several files define ModelNew: %s",
			strings.Join(answers, ", "))
	} else if len(answers) == 1 {
		answer = answers[0]
	}
	file := filepath.Base(problems[0])
	name := strings.TrimSuffix(file, ".py")
	// The name of a problem begins with its number, which no module's name may.
	f := &trace.Functions{Inputs: "problem.py::get_inputs", Init: "problem.py::get_init_inputs",
		Expected: "problem.py::Model", Atol: kernelBenchTolerance, Rtol: kernelBenchTolerance, Call: "model"}
	f.Files.Set("problem.py", text)
	t := &Task{File: problems[0], Answer: answer, symbol: "ModelNew",
		Definition: define(name, KernelBench, "", f)}
	s := Set{Name: "trials"}
	for _, seed := range kernelBenchSeeds {
		var axes trace.Map[int]
		axes.Set("seed", seed)
		s.Workloads = append(s.Workloads, workload(t.Definition, s.Name, axes, trace.Map[any]{}))
	}
	t.Sets = []Set{s}
	return t, nil
}
