// Package tasks reads problems of GPU MODE and KernelBench from their own files, as definitions whose functions in
// Python make the inputs and judge the outputs. It reads text and runs nothing.
//
// GPU MODE: a folder with task.yml and submission.py. The keys are those of kernelbot's task.py (gpu-mode/kernelbot
// 4bdd839a). KernelBench: a folder with one file that defines Model, get_inputs and get_init_inputs, and one that
// defines ModelNew; the rules are those of eval.py (ScalingIntelligence/KernelBench 423217d).
package tasks

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"fisub/internal/cache"
	"fisub/internal/hint"
	"fisub/internal/plain"
	"fisub/internal/trace"
	"fisub/workloads"
)

// A Task is a problem.
type Task struct {
	File       string // of the problem
	Definition *trace.Definition
	Sets       []Set
	Answer     string // the file of its answer, which may not exist yet

	symbol string // of the answer
}

// A Set is a named list of workloads.
type Set struct {
	Name      string
	Workloads []*trace.Workload
}

// maxFile limits a file of a task, in bytes.
const maxFile = 4 << 20

// Read reads the task in the folder dir. If there is none, both results are nil.
func Read(dir string) (*Task, error) {
	file := filepath.Join(dir, "task.yml")
	if _, err := os.Lstat(file); err == nil {
		return readGPUMode(file)
	}
	return readKernelBench(dir)
}

// object is the spec of the object that functions make or judge.
var object = trace.TensorSpec{Scalar: true, Foreign: trace.Object}

// define returns a definition without axes.
func define(name, kind, description string, f *trace.Functions) *trace.Definition {
	def := &trace.Definition{Name: name, OpType: kind, Python: f}
	if description = strings.TrimSpace(description); description != "" {
		def.Description = &description
	}
	def.Inputs.Set("data", object)
	def.Outputs.Set("output", object)
	return def
}

// workload returns a workload of def, whose axes it adds to def's. Its UUID follows from the definition's files and the
// values.
func workload(def *trace.Definition, set string, axes trace.Map[int], arguments trace.Map[any]) *trace.Workload {
	w := &trace.Workload{Axes: axes}
	if arguments.Len() > 0 {
		w.Arguments = &arguments
	}
	for name := range axes.All() {
		def.Axes.Set(name, trace.Axis{})
	}
	parts := []string{string(w.JSON(trace.Compact))}
	for name, text := range def.Python.Files.All() {
		parts = append(parts, name, text)
	}
	w.UUID = workloads.UUID(def.Name, set, cache.Key(parts...))
	return w
}

// readPython reads a file of Python. A task comes from elsewhere and its files go to hosts, so neither a name in it nor
// a link leads to other files.
func readPython(file string) (string, error) {
	to, err := filepath.EvalSymlinks(file)
	if err == nil && filepath.Ext(to) != ".py" {
		return "", fail(file, 0, "replace it with the file itself", "it leads to %s, which is not a Python file", to)
	}
	var text []byte
	if err == nil {
		text, err = plain.ReadFile(to, maxFile)
	}
	if err != nil {
		return "", hint.Wrap(fmt.Errorf("%s: %w", file, plain.Cause(err)), "copy the task with the files that it names")
	}
	return string(text), nil
}

// Read returns the answer in a file.
func (t *Task) Read(file string) (*trace.Solution, error) {
	def := t.Definition
	text, err := readPython(file)
	if err != nil {
		return nil, err
	}
	name := filepath.Base(file)
	sol := &trace.Solution{Name: strings.TrimSuffix(name, ".py"), Definition: def.Name, Author: "unknown",
		Sources: []trace.SourceFile{{Path: name, Content: text}},
		Spec: trace.BuildSpec{Language: trace.Python, TargetHardware: []string{"cuda"},
			EntryPoint: name + "::" + t.symbol}}
	if triton.MatchString(sol.Sources[0].Content) {
		sol.Spec.Language = trace.Triton
	}
	return sol, sol.Validate()
}

var triton = regexp.MustCompile(`(?m)^[ \t]*(import|from)[ \t]+triton\b`)

// fail returns an error with a place and a remedy; line is 0 if unknown.
func fail(file string, line int, remedy, format string, args ...any) error {
	place := file
	if line > 0 {
		place = fmt.Sprintf("%s:%d", file, line)
	}
	return hint.Wrap(fmt.Errorf("%s: %s", place, fmt.Sprintf(format, args...)), remedy)
}
